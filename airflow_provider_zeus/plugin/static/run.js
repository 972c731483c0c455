// The tab of a run: a part for each of its tasks and map indexes with a Zeus job. It follows a run that trains.
import { noCharts, partBlocks, showCharts } from "./blocks.js";
import {
  api, byId, dagId, element, fetchJson, jobId, pageAddress, present, replace, runId, say, showJobs, sourceBadges,
  stateBadge, unbroken,
} from "./ui.js";
import { taskTable } from "./tasks.js";

const shown = new Map(); // part key -> {its elements, the part, its text, the text that its charts belong to}
let timer = null;
let answer = null;
let emptyAnswers = 0; // refreshes of a run without trials
const MOST_EMPTY = 40;
const MANY = 10; // map indexes of a task, beyond which they are in a closed part of their own

export async function show() {
  await renew();
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));
  schedule();
}

async function renew() {
  answer = await fetchJson(api("dags", dagId, "runs", runId, "costs", { job_id: jobId }));
  showJobs(answer.jobs, answer.job_id ?? jobId, "All tasks");
  present(answer, fill);
}

// ---------------------------------------------------------------- refresh: while a trial runs and the page is visible

function schedule() {
  clearTimeout(timer);
  if (answer.note && ++emptyAnswers > MOST_EMPTY) return;
  if (answer.refresh_s !== null && !document.hidden) timer = setTimeout(refresh, answer.refresh_s * 1000);
}

async function refresh() {
  if (answer.refresh_s === null || document.hidden) return undefined;
  try {
    await renew();
  } catch (problem) {
    if (!byId("updated")) return say(problem.message, true);
    byId("updated").textContent = `Not up to date: ${problem.message}`;
    byId("updated").hidden = false;
  }
  return schedule();
}

function fill(content, { parts, tasks, store, refresh_s: every }) {
  if (!byId("parts")) {
    content.replaceChildren(
      element("p", null, { id: "updated", class: "note", role: "status" }),
      element("section", null, { id: "tasks", "aria-label": "Tasks of this run" }, element("div")),
      element("div", null, { id: "parts" }),
      element("p", null, { id: "store", class: "note" }),
    );
  }
  byId("tasks").hidden = !tasks;
  if (tasks) replaceTasks(tasks);
  for (const [i, part] of parts.entries()) showPart(part, parts.length > 1, i === 0);
  byId("store").textContent = `Run log: ${store}`;
  byId("updated").textContent = every === null ? "" : `A training is running; this page is refreshed every ${every} s.`;
  byId("updated").hidden = every === null;
}

/** The table of all tasks; its closed part stays open if a reader has opened it. */
function replaceTasks(tasks) {
  const before = byId("tasks").firstElementChild;
  const isOpen = before.querySelector("details.small")?.open ?? false;
  const made = taskTable(tasks, null);
  if (isOpen) made.querySelector("details.small")?.setAttribute("open", "open");
  replace(before, made);
}

// ---------------------------------------------------------------- a part

function showPart(part, several, open) {
  const key = JSON.stringify([part.job_id, part.task_id, part.map_index]);
  const text = JSON.stringify(part);
  if (!shown.has(key)) {
    const [head, body, charts] = [element("h2"), element("div"), element("div", null, { class: "charts" })];
    const outer = several
      ? element("details", null, { class: "part", "aria-label": part.title, open: open ? "open" : null }, element("summary", null, {}, head), body, charts)
      : element("section", null, { class: "part", "aria-label": part.title }, head, body, charts);
    placeOf(part).append(outer);
    shown.set(key, { outer, head, body, next: element("p", null, { class: "sentence next" }), box: charts, text: null, charts: null });
    if (several) outer.addEventListener("toggle", () => partCharts(shown.get(key)));
  }
  const own = shown.get(key);
  if (own.text === text) return;
  own.text = text;
  own.part = part;
  own.head.replaceChildren(`${several ? `${part.title}, job` : "Job"} ${part.job_id} `, stateBadge(part.state, part.state_text, part.state_why), " ", ...sourceBadges(part.source));
  if (several) own.head.append(element("span", ` ${part.verdict.word}`, { class: "note" }));
  own.body.replaceChildren(...partBlocks(answer.blocks.filter(({ slow }) => !slow), part));
  own.body.querySelector(".verdict")?.after(own.next);
  partCharts(own);
}

/** Where a part is shown: beside the others, or with the other map indexes of its task if they are many. */
function placeOf({ task_id: task }) {
  const count = answer.parts.filter((other) => other.task_id === task).length;
  if (count <= MANY) return byId("parts");
  const group = document.querySelector(`details[data-task="${CSS.escape(task)}"]`);
  if (group) return group;
  const made = element("details", null, { class: "part", "data-task": task, "aria-label": task },
    element("summary", null, {}, element("h2", `${task}, ${count.toLocaleString()} mapped`)));
  byId("parts").append(made);
  return made;
}

/** What the job's next run does, as its tab says it; a link to the tab where this run is not the job's newest one. */
async function sayNext({ next: line, part: { job_id: job, live, newest } }) {
  if (live) return line.replaceChildren();
  try {
    if (newest) {
      const { next } = await fetchJson(api("jobs", dagId, "saved", { job_id: job }));
      return line.replaceChildren(next && `Next run: ${unbroken(next)}.`);
    }
  } catch {
    // the tab says it, or why not
  }
  return line.replaceChildren(element("a", "What comes next", { href: pageAddress(dagId, { job }) }));
}

/** What comes next, and the charts, of a part that is open. */
async function partCharts(own) {
  if (own.outer.open === false || own.charts === own.text) return;
  own.charts = own.text;
  sayNext(own);
  const { job_id: job, task_id: task, map_index: index } = own.part;
  try {
    const charts = await fetchJson(api("dags", dagId, "runs", runId, "charts", { job_id: job, task_id: task, map_index: index }));
    showCharts(own.box, answer.blocks, charts);
  } catch (problem) {
    noCharts(own.box, problem);
  }
}

// The tab of a run: a part for each of its tasks and map indexes with a Zeus job.
import {
  answerBlock, api, byId, dagId, element, fetchJson, figure, jobId, present, replace, runId, say, showJobs, showList, sourceBadges, stateBadge,
  table, template, tileItem, tryAgain, verdictLine,
} from "./ui.js";
import { chartBlock, forgetIn, updateChart } from "./charts.js";

const shown = new Map(); // part key -> {section, text of the answer, body}
let timer = null;
let answer = null;
let emptyAnswers = 0; // refreshes of a run without trials
const MOST_EMPTY = 40;

export async function show() {
  answer = await fetchJson(api("dags", dagId, "runs", runId, "costs", { job_id: jobId }));
  showJobs(answer.jobs, answer.job_id ?? jobId ?? answer.jobs[0]);
  present(answer, fill);
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));
  schedule();
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
    answer = await fetchJson(api("dags", dagId, "runs", runId, "costs", { job_id: jobId }));
    present(answer, fill);
    showJobs(answer.jobs, answer.job_id ?? jobId ?? answer.jobs[0]);
  } catch (problem) {
    if (!byId("updated")) return say(problem.message, true);
    byId("updated").textContent = `Not up to date: ${problem.message}`;
    byId("updated").hidden = false;
  }
  return schedule();
}

function fill(content, { parts, store, refresh_s: every }) {
  if (!byId("parts")) content.replaceChildren(template("run-view"));
  const several = parts.length > 1;
  byId("summary").hidden = !several;
  if (several) replace(byId("summary").firstElementChild, table(summary(parts)));
  for (const [i, part] of parts.entries()) showPart(part, several, i === 0);
  byId("store").textContent = `Trial log: ${store}`;
  byId("updated").textContent = every === null ? "" : `A training is running; this page is refreshed every ${every} s.`;
  byId("updated").hidden = every === null;
}

function summary(parts) {
  const tiles = (part) => [...part.headline[0].figures, ...part.tiles];
  const find = (part, name) => tiles(part).find((tile) => tile.name === name)?.figure.text ?? "–";
  return {
    caption: "Tasks of this run",
    columns: ["Task", "Job", "Batch size", "Energy", "Time", "Cost", "Verdict", "State", "Source"],
    numeric: [false, false, true, true, true, true, false, false, false],
    rows: parts.map((part) => [
      part.title, part.job_id, part.batch_size, ...["Energy", "Time", "Cost"].map((name) => find(part, name)),
      part.verdict.word, part.state_text, part.source.text || "–",
    ]),
  };
}

// ---------------------------------------------------------------- a part

function showPart(part, several, open) {
  const key = JSON.stringify([part.job_id, part.task_id, part.map_index]);
  const text = JSON.stringify(part);
  if (!shown.has(key)) {
    const made = several ? folded(part, open) : plain(part);
    byId("parts").append(made.outer);
    shown.set(key, { ...made, text: null, charts: null });
    if (several) made.outer.addEventListener("toggle", () => showCharts(shown.get(key)));
  }
  const own = shown.get(key);
  if (own.text === text) return;
  own.text = text;
  own.part = part;
  own.head.replaceChildren(`${part.title} `, stateBadge(part.state, part.state_text, part.state_why));
  if (several) own.head.append(element("span", ` ${part.verdict.word}, ${part.job_id}`, { class: "note" }));
  own.body.replaceChildren(...partBody(part));
  showCharts(own);
}

function plain(part) {
  const head = element("h2");
  const body = element("div");
  const charts = element("div", null, { class: "charts" });
  return { outer: element("section", null, { class: "part", "aria-label": part.title }, head, body, charts), head, body, box: charts };
}

function folded(part, open) {
  const head = element("h2");
  const body = element("div");
  const charts = element("div", null, { class: "charts" });
  const outer = element("details", null, { class: "part", "aria-label": part.title, ...(open ? { open: "open" } : {}) }, element("summary", null, {}, head), body, charts);
  return { outer, head, body, box: charts };
}

function partBody(part) {
  const facts = element("ul", null, { class: "facts", "aria-label": "Target and weights of the job" });
  showList(facts, part.facts);
  const settings = element("ul", null, { class: "facts live", "aria-label": "Live settings" });
  showList(settings, part.settings.map((text) => `Live setting: ${text}`));
  return [
    ...(part.progress ? [progressBar(part.progress)] : []),
    element("div", null, { class: "headline" }, ...part.headline.map(answerBlock)),
    verdictLine(part.verdict),
    element("ul", null, { class: "tiles", "aria-label": "What this run cost" }, ...part.tiles.map(tileItem)),
    ...part.notes.map((text) => element("p", text, { class: "note remark" })),
    facts,
    settings,
    element("h3", part.attempts.length === 1 ? "Its attempt" : "Its attempts, in order"),
    element("ol", null, { class: "attempts" }, ...part.attempts.map(attemptItem)),
  ];
}

function progressBar({ text, epochs, max_epochs: most }) {
  const line = element("p", text, { class: "progress", role: "status" });
  if (most === null) return line;
  line.append(element("progress", null, { max: most, value: epochs ?? 0, "aria-label": "Epochs, of at most" }));
  return line;
}

function attemptItem(attempt, i) {
  const head = element("p", null, { class: "attempt-head" });
  head.append(element("strong", `${i + 1}. Batch size ${attempt.batch_size}`), " ");
  head.append(stateBadge(attempt.waits ? "waits" : attempt.state, attempt.state_text), " ", ...sourceBadges(attempt.source));
  head.append(element("span", ` ${attempt.phase}`, { class: "note" }));
  const figures = element("dl");
  const named = [
    ["Cost", attempt.cost],
    ["of which profiling", attempt.excess],
    ["Energy", attempt.energy],
    ["Time", attempt.time],
    ["Epochs", attempt.epochs],
    ["Power limit", attempt.limit],
    ...(attempt.busy ? [["GPU busy", attempt.busy]] : []),
  ];
  for (const [label, value] of named) figures.append(element("div", null, {}, element("dt", label), figure("dd", value)));
  const where = attempt.device ? `${attempt.where}, on ${attempt.device}` : attempt.where;
  return element("li", null, {},
    head,
    sentence("Why it was chosen", attempt.why),
    sentence(attempt.state === "running" && !attempt.waits ? "Now" : "Why it ended", attempt.ended),
    figures,
    element("p", where, { class: "note" }),
  );
}

function sentence(name, text) {
  return element("p", null, {}, element("span", `${name}: `, { class: "note" }), text);
}

// ---------------------------------------------------------------- charts: of an open part

async function showCharts(own) {
  if (own.outer.open === false || own.charts === own.text) return;
  own.charts = own.text;
  const part = own.part;
  const index = part.map_index === null ? null : part.map_index;
  const query = { job_id: part.job_id, task_id: part.task_id, map_index: index };
  try {
    const { note, power, metric, gpus, curves } = await fetchJson(api("dags", dagId, "runs", runId, "charts", query));
    const named = [["power", power], ["metric", metric], ["gpus", gpus], ...curves.map((curve) => ["curve", curve])].filter(([, chart]) => chart);
    const found = note === null ? named : [];
    const blocks = [...own.box.querySelectorAll("figure")];
    const titles = (list) => JSON.stringify(list);
    if (titles(blocks.map((block) => block.dataset.title)) === titles(found.map(([, chart]) => chart.title))) {
      found.forEach(([, chart], i) => updateChart(blocks[i], chart));
      return;
    }
    forgetIn(own.box);
    own.box.replaceChildren(...found.map(([name, chart]) => chartBlock(chart, { open: name !== "power" && name !== "metric", name })));
  } catch (problem) {
    own.box.replaceChildren(element("p", `The charts cannot be shown: ${problem.message}`, { class: "note" }, ...tryAgain(problem)));
  }
}

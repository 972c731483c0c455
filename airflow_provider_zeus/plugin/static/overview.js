// The page of all jobs. Savings of a job take its whole log, so they are fetched when the job's row becomes visible.
import { controls } from "./actions.js";
import {
  airflow, api, badge, breakable, byId, element, fetchJson, figure, pageAddress, present, showLeftOut, sourceBadges,
  stateBadge, template, tryAgain,
} from "./ui.js";

const AT_ONCE = 2; // concurrent requests for savings
const waiting = [];
let underWay = 0;

export async function show() {
  byId("title").textContent = "Zeus";
  present(await fetchJson(api("jobs")), fill);
}

function fill(content, answer) {
  content.replaceChildren(template("overview-view"));
  byId("count").textContent = answer.jobs.length === 1 ? "1 job" : `${answer.jobs.length.toLocaleString()} jobs`;
  byId("jobs").replaceChildren(...answer.jobs.map(jobRow));
  byId("store").textContent = `Trial log: ${answer.store}`;
  showLeftOut(answer.left_out);
  byId("settings-close").addEventListener("click", () => byId("settings-box").close());
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      waiting.push(target);
    }
    next();
  });
  for (const row of byId("jobs").rows) seen.observe(row);
}

function jobRow(job) {
  const name = element("th", null, { scope: "row" });
  const tab = { href: airflow("dags", job.dag_id, "plugin", "zeus-cost"), target: "_top", title: `Tab “Zeus cost” of DAG ${job.dag_id}` };
  name.append(element("a", null, tab, ...breakable(job.job_id)));
  name.append(element("span", null, { class: "note dag", title: `DAG ${job.dag_id}` }, ...breakable(job.dag_id)));
  const began = new Date(job.began_at * 1000);
  const run = element("a", began.toLocaleString(), { href: airflow("dags", job.dag_id, "runs", job.run_id, "plugin", "zeus-cost-run"), target: "_top", title: job.run_id });
  const last = element("td", null, {}, run, element("br"));
  last.append(`batch size ${job.batch_size} `, stateBadge(job.outcome, job.outcome_text));
  const trend = element("td", null, { title: job.trend.exact });
  trend.append(element("span", job.trend.blocks, { class: "blocks", "aria-hidden": "true" }), ` ${job.trend.text || "–"}`);
  const row = element("tr", null, {},
    name,
    element("td", null, { class: "state" }, ...stateParts(job.state)),
    element("td", "…", { class: "saved" }),
    element("td", null, { class: "number" }, figure("div", job.last_cost), ...sourceBadges(job.source)),
    trend,
    last,
    element("td", null, { class: "live-settings" }, ...settingsParts(job)),
  );
  row.job = job;
  return row;
}

function stateParts({ name, why }) {
  return [badge(name, `job-${name}`), element("div", why, { class: "note why" })];
}

function settingsParts(job) {
  const open = element("button", "Settings", { type: "button", "aria-label": `Pause or pin ${job.job_id}` });
  open.addEventListener("click", () => openSettings(job));
  const set = job.settings.map((text) => element("div", text, { class: "set", title: job.changed }));
  return [...set, ...(job.changed ? [element("div", job.changed, { class: "note why" })] : []), open];
}

function openSettings(job) {
  let changed = false;
  byId("settings-job").textContent = job.job_id;
  byId("settings-of").replaceChildren(controls(job.dag_id, job.job_id, () => { changed = true; }));
  byId("settings-box").addEventListener("close", () => changed && show(), { once: true });
  byId("settings-box").showModal();
}

/** Fetch the savings of waiting rows, a few at a time. */
async function next() {
  while (underWay < AT_ONCE && waiting.length) {
    const row = waiting.shift();
    underWay += 1;
    fillSaved(row).finally(() => {
      underWay -= 1;
      next();
    });
  }
}

async function fillSaved(row) {
  const { job } = row;
  const cell = row.querySelector(".saved");
  try {
    const saved = await fetchJson(api("jobs", job.dag_id, "saved", { job_id: job.job_id }));
    const amount = saved.figure.value === null ? [] : [" ", figure("span", saved.figure, { class: "amount" })];
    const badges = saved.figure.value === null ? [] : sourceBadges(saved.source);
    cell.replaceChildren(element("span", saved.word, { class: saved.kind, title: saved.text }), ...amount, ...badges);
    if (saved.of) cell.append(element("div", saved.of, { class: "note of" }));
    if (saved.figure.value === null) cell.append(element("div", saved.text, { class: "note why" }));
    const calm = job.state.name === "exploring" || job.state.name === "settled";
    if (saved.state && calm) row.querySelector(".state").replaceChildren(...stateParts(saved.state));
  } catch (problem) {
    cell.replaceChildren(element("span", problem.message, { class: "note" }), ...tryAgain(problem));
  }
}

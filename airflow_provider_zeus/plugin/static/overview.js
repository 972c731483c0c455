// The page of all jobs. Savings of a job take its whole log, so they are fetched when the job's row becomes visible.
import { controls } from "./actions.js";
import {
  airflow, api, badge, breakable, byId, element, fetchJson, figure, minuteText, section, sourceBadges, stateBadge, template, tryAgain,
  unbroken,
} from "./ui.js";
import { sortableTable } from "./sort.js";

const AT_ONCE = 2; // concurrent requests for savings
const waiting = [];
let underWay = 0;
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    waiting.push(target);
  }
  next();
});

export function jobsTable(jobs, { title }) {
  const rows = sortableTable("job-table", "jobs",
    ["Job, DAG", "State", "Saved so far", "Last run that ended", "Newest and next run", "-Settings"]);
  rows.tBodies[0].append(...jobs.map(jobRow));
  const box = Object.assign(section(title, template("jobs-block")), { id: "jobs-section" });
  const find = (id) => box.querySelector(`#${id}`);
  box.querySelector("h2").append(" ", element("span", null, { id: "count", class: "note" }));
  find("job-table-box").append(rows);
  offer(find("filter-state"), jobs.map(({ state }) => state.name));
  offer(find("filter-source"), jobs.map(({ source }) => source.text));
  find("filters").addEventListener("input", filter);
  find("filters").addEventListener("submit", (event) => event.preventDefault());
  find("settings-close").addEventListener("click", () => byId("settings-box").close());
  queueMicrotask(filter); // once it is on the page
  for (const row of rows.tBodies[0].rows) seen.observe(row);
  return box;
}

function offer(choice, names) {
  const known = [...new Set(names)].filter(Boolean).sort();
  choice.append(...known.map((name) => element("option", name, { value: name })));
}

/** Show the rows that have the text in a name, a tag or an owner, and the chosen state and source. */
function filter() {
  const words = byId("filter-text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [state, source] = ["filter-state", "filter-source"].map((id) => byId(id).value);
  let count = 0;
  for (const row of byId("jobs").rows) {
    const { job } = row;
    const text = [job.job_id, job.dag_id, ...job.tags, ...job.owners].join(" ").toLowerCase();
    const named = words.every((word) => text.includes(word));
    row.hidden = !(named && (!state || job.state.name === state) && (!source || job.source.text === source));
    count += row.hidden ? 0 : 1;
  }
  const all = byId("jobs").rows.length;
  byId("count").textContent = `${count === all ? "" : `${count.toLocaleString()} of `}${all.toLocaleString()} that you may see`;
}

function jobRow(job) {
  const name = element("th", null, { scope: "row" });
  const tab = { href: airflow("dags", job.dag_id, "plugin", "zeus-cost"), target: "_top", title: `Tab “Zeus cost” of DAG ${job.dag_id}` };
  name.append(element("a", null, tab, ...breakable(job.job_id)));
  name.append(element("span", null, { class: "note dag", title: `DAG ${job.dag_id}` }, ...breakable(job.dag_id)));
  const about = [...job.tags, ...job.owners.map((owner) => `by ${owner}`)].join(" · ");
  if (about) name.append(element("span", about, { class: "note dag tags" }));
  const began = new Date(job.began_at * 1000);
  const run = element("a", minuteText(began), { href: airflow("dags", job.dag_id, "runs", job.run_id, "plugin", "zeus-cost-run"), target: "_top", title: job.run_id });
  const last = element("td", null, { "data-sort": job.began_at }, run, element("br"));
  last.append(job.batch_size === null ? "" : `batch size ${job.batch_size} `, stateBadge(job.outcome, job.outcome_text), element("div", null, { class: "note next" }));
  const trend = element("div", null, { title: job.trend.exact, class: "note trend" },
    element("span", job.trend.blocks, { class: "blocks", "aria-hidden": "true" }), " ", element("span", `Trend: ${job.trend.text}`));
  const row = element("tr", null, {},
    name,
    element("td", null, { class: "state" }, ...stateParts(job.state)),
    element("td", "…", { class: "saved", "data-sort": "" }),
    element("td", null, { class: "last", "data-sort": job.last_energy.value ?? "" }, ...lastParts(job), trend),
    last,
    element("td", null, { class: "live-settings" }, ...settingsParts(job)),
  );
  row.job = job;
  return row;
}

/** What the newest run drew and took. */
function lastParts({ last_energy: energy, last_time: time, source }) {
  const parts = (energy.value === null && time.value !== null ? [time] : [energy, time]).map((each) => figure("div", each));
  return [...parts, ...sourceBadges(source)];
}

function stateParts({ name, why }) {
  return [badge(name, `job-${name.replaceAll(" ", "-")}`), element("div", why, { class: "note why" })];
}

function settingsParts(job) {
  if (job.batch_size === null) return []; // nothing is chosen for it, so there is nothing to pause or pin
  const open = element("button", "Settings", { type: "button", "aria-label": `Pause or pin ${job.job_id}` });
  open.addEventListener("click", () => openSettings(job, open.closest("tr")));
  const set = job.settings.map((text) => element("div", text, { class: "set", title: job.changed }));
  return [...set, ...(job.changed ? [element("div", job.changed, { class: "note why" })] : []), open];
}

function openSettings(job, row) {
  let changed = false;
  byId("settings-job").textContent = job.job_id;
  byId("settings-of").replaceChildren(controls(job.dag_id, job.job_id, () => { changed = true; }));
  byId("settings-box").addEventListener("close", () => changed && renew(row), { once: true });
  byId("settings-box").showModal();
}

/** Show a row again after its job was changed; the order and the filters stay. */
async function renew(row) {
  const { jobs } = await fetchJson(api("jobs"));
  const job = jobs.find(({ dag_id: dag, job_id: id }) => dag === row.job.dag_id && id === row.job.job_id);
  if (!job) return;
  const renewed = jobRow(job);
  row.replaceWith(renewed);
  seen.observe(renewed);
  filter();
  renewed.querySelector(".live-settings button").focus();
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
    const share = saved.figure.value === null ? [] : [" ", figure("span", saved.figure, { class: "share" })];
    cell.replaceChildren(element("span", saved.word, { class: saved.kind, title: saved.text }), ...share);
    if (saved.amounts) cell.append(element("span", saved.amounts, { class: "amount", title: saved.text }));
    cell.dataset.sort = saved.figure.value ?? "";
    if (saved.of) cell.append(element("div", saved.of, { class: "note of" }));
    if (!saved.amounts && !share.length) cell.append(element("div", saved.text, { class: "note why" }));
    row.querySelector(".next").textContent = saved.next && `Next run: ${unbroken(saved.next)}`;
    const calm = job.state.name === "exploring" || job.state.name === "settled";
    if (saved.state && calm) row.querySelector(".state").replaceChildren(...stateParts(saved.state));
  } catch (problem) {
    cell.replaceChildren(element("span", problem.message, { class: "note" }), ...tryAgain(problem));
  }
}

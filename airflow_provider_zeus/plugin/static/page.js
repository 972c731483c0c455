// The page of a DAG (?dag_id=) or of one run (&run_id=). What comes from outside is only ever set as text.
"use strict";

const MOST_RUNS = 1000;
const asked = new URLSearchParams(location.search);
const dagId = asked.get("dag_id") ?? "";
const runId = asked.get("run_id"); // null: the page of the DAG
let limit = null;
let chart = null;
let answer = null;
let complete = false; // whether the chart library has arrived, if it is there at all

const byId = (id) => document.getElementById(id);

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== "") made.setAttribute(key, value);
  }
  return made;
}

function pageAddress(run, job) {
  const query = new URLSearchParams({ dag_id: dagId });
  if (run !== null) query.set("run_id", run);
  if (job) query.set("job_id", job);
  return `page?${query}`;
}

function dataAddress() {
  const run = runId === null ? "" : `/runs/${encodeURIComponent(runId)}`;
  const query = new URLSearchParams();
  if (asked.get("job_id")) query.set("job_id", asked.get("job_id"));
  if (limit !== null) query.set("limit", limit);
  return `api/dags/${encodeURIComponent(dagId)}${run}/costs?${query}`;
}

const PROBLEMS = {
  401: "Your login has ended. Log in to Airflow again and reload this page.",
  403: "You may not read the runs of this DAG.",
  404: "There is no such DAG or run.",
};

async function load() {
  let response;
  try {
    response = await fetch(dataAddress(), { credentials: "same-origin", headers: { Accept: "application/json" } });
  } catch {
    return say("Airflow cannot be reached. Reload this page when it runs again.", true);
  }
  let body = {};
  try {
    body = await response.json();
  } catch {
    // no JSON: a proxy in between answered
  }
  if (!response.ok) {
    return say(body.problem ?? PROBLEMS[response.status] ?? `The costs cannot be read (status ${response.status}).`, true);
  }
  answer = body;
  show();
}

function say(text, isProblem) {
  byId("message").textContent = text;
  byId("message").classList.toggle("problem", isProblem);
  byId("message").hidden = false;
  byId("content").hidden = true;
}

function show() {
  showJobs();
  if (answer.note) return say(answer.note, false);
  byId("message").hidden = true;
  byId("content").hidden = false;
  showList("facts", answer.facts);
  showList("settings", answer.settings.map((text) => `Live setting: ${text}`));
  byId("attempts-part").hidden = runId === null;
  byId("attempts").replaceChildren(...answer.attempts.map(attemptItem));
  byId("rows").replaceChildren(...answer.rows.map(tableRow));
  byId("totals").replaceChildren(...answer.totals.map(totalRow));
  byId("more").hidden = !answer.more || limit === MOST_RUNS;
  byId("store").textContent = `Trial log: ${answer.store}`;
  showChart();
}

function showJobs() {
  const chosen = answer.job_id ?? asked.get("job_id");
  const options = answer.jobs.map((job) => element("option", job, { value: job }));
  for (const option of options) option.selected = option.value === chosen;
  byId("job").replaceChildren(...options);
  byId("job-choice").hidden = answer.jobs.length < 2;
  if (runId !== null) {
    byId("title").textContent = `Zeus cost of run ${runId}`;
    byId("back").hidden = false;
    byId("back").href = pageAddress(null, chosen);
  }
}

function showList(id, texts) {
  byId(id).replaceChildren(...texts.map((text) => element("li", text)));
  byId(id).hidden = texts.length === 0;
}

// ---------------------------------------------------------------- table

function figureCell(figure) {
  return element("td", figure.text, { class: "number", title: figure.exact });
}

function badge(text, kind, title) {
  return element("span", text, { class: `badge ${kind}`, title });
}

function stateBadge(state, text, title) {
  return badge(text, `state-${state}`, title);
}

function sourceBadges(item) {
  if (!item.source_text) return [];
  const kind = item.simulated ? "simulated" : item.source_text === "no source" ? "no-source" : "source";
  const why = item.simulated ? "No hardware drew this: a model computed it." : item.energy.exact;
  return [badge(item.source_text, kind, kind === "source" ? "" : why)];
}

function batchSizes({ attempts, peeks }) {
  const list = element("span", null, { class: "sizes" });
  attempts.forEach((tried, i) => {
    if (i) list.append(" → ");
    const gone = tried.state === "given_up";
    list.append(element(gone ? "s" : "span", tried.batch_size, { title: tried.state_text }));
    if (gone) list.append(element("span", " (given up)", { class: "unseen" }));
  });
  if (peeks.length) {
    const title = "Batch sizes looked at for a few seconds after the kept attempt";
    list.append(element("span", ` + look at ${peeks.join(", ")}`, { class: "note", title }));
  }
  return list;
}

function tableRow(row) {
  const line = element("tr", null, row.run_id === runId ? { "aria-current": "true" } : {});
  const run = element("th", null, { scope: "row" });
  const began = new Date(row.began_at * 1000);
  const name = row.map_index === null ? row.run_id : `${row.run_id} [${row.map_index}]`;
  run.append(element("a", name, { href: pageAddress(row.run_id, answer.job_id), title: name }));
  run.append(element("time", began.toLocaleString(), { datetime: began.toISOString(), title: row.run_type }));
  const sizes = element("td");
  sizes.append(batchSizes(row));
  const state = element("td");
  state.append(stateBadge(row.state, row.state_text, row.state_why));
  const source = element("td");
  source.append(...sourceBadges(row));
  line.append(
    run,
    element("td", row.slice_text || "–", { class: "slice", title: row.data_slice }),
    sizes,
    ...[row.limit, row.epochs, row.energy, row.time, row.cost].map(figureCell),
    element("td", row.phase, { title: row.why }),
    state,
    source,
  );
  return line;
}

function totalRow(total) {
  const line = element("tr");
  const runs = total.runs === 1 ? "1 run" : `${total.runs.toLocaleString()} runs`;
  line.append(
    element("th", `Sum of ${runs}, ${total.source_text}`, { scope: "row", colspan: "5" }),
    ...[total.energy, total.time, total.cost].map(figureCell),
    element("td", null, { colspan: "3" }),
  );
  return line;
}

// ---------------------------------------------------------------- one run

function attemptItem(attempt) {
  const item = element("li");
  const head = element("p", null, { class: "attempt-head" });
  head.append(element("strong", `Batch size ${attempt.batch_size}`), " ");
  head.append(stateBadge(attempt.state, attempt.state_text), " ", ...sourceBadges(attempt));
  const figures = element("dl");
  const named = [
    ["Cost", attempt.cost],
    ["of it profiling", attempt.excess],
    ["Energy", attempt.energy],
    ["Time", attempt.time],
    ["Epochs", attempt.epochs],
    ["Power limit", attempt.limit],
  ];
  for (const [name, figure] of named) {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", figure.text, { title: figure.exact }));
    figures.append(pair);
  }
  const where = attempt.device ? `${attempt.where}, on ${attempt.device}` : attempt.where;
  item.append(
    head,
    sentence("Why it was chosen", attempt.why),
    sentence("Why it ended", attempt.ended),
    figures,
    element("p", where, { class: "note" }),
  );
  return item;
}

function sentence(name, text) {
  const paragraph = element("p");
  paragraph.append(element("span", `${name}: `, { class: "note" }), text);
  return paragraph;
}

// ---------------------------------------------------------------- chart

function showChart() {
  chart?.dispose();
  chart = null;
  const box = byId("chart");
  box.hidden = true;
  if (!complete) return;
  if (!answer.chart) {
    byId("chart-note").textContent = `No run of known cost yet. ${answer.left_out}`;
    return;
  }
  if (!window.echarts) {
    byId("chart-note").textContent =
      "The chart library is missing here; “pip install -e .” or “make demo” in the provider's checkout brings it. " +
      "The table below is complete without it.";
    return;
  }
  box.hidden = false;
  box.setAttribute("aria-label", answer.chart_text);
  byId("chart-note").textContent = [answer.chart_legend, answer.left_out].filter(Boolean).join(" ");
  chart = window.echarts.init(box, chartTheme());
  const tooltip = { ...answer.chart.tooltip, formatter: (point) => point.data.tip ?? "" };
  chart.setOption({ ...answer.chart, tooltip });
}

function chartTheme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const text = { color: colour("--text") };
  const axis = {
    axisLine: { lineStyle: { color: colour("--quiet") } },
    axisTick: { lineStyle: { color: colour("--quiet") } },
    axisLabel: text,
    nameTextStyle: text,
    splitLine: { lineStyle: { color: colour("--line") } },
  };
  return {
    backgroundColor: "transparent",
    textStyle: { fontFamily: style.fontFamily },
    categoryAxis: { ...axis, splitLine: { show: false } },
    valueAxis: axis,
    legend: { textStyle: text, pageTextStyle: text, pageIconColor: colour("--text"), inactiveColor: colour("--quiet") },
    scatter: { label: { color: colour("--text") } },
    markLine: { label: { color: colour("--text") } },
    dataZoom: { textStyle: text, borderColor: colour("--line") },
    tooltip: { backgroundColor: colour("--tip"), borderColor: colour("--line"), textStyle: text },
  };
}

// ---------------------------------------------------------------- theme

function airflowTheme() {
  try {
    const classes = parent.document.documentElement.classList;
    if (parent !== window && classes.contains("dark")) return "dark";
    if (parent !== window && classes.contains("light")) return "light";
  } catch {
    // shown inside a page of another origin
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function followTheme() {
  const apply = () => {
    const theme = airflowTheme();
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    if (answer && !answer.note) showChart();
  };
  apply();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  try {
    new MutationObserver(apply).observe(parent.document.documentElement, { attributeFilter: ["class"] });
  } catch {
    // another origin: the system's own preference counts
  }
}

followTheme();
byId("job").addEventListener("change", () => location.assign(pageAddress(runId, byId("job").value)));
byId("more").addEventListener("click", () => {
  limit = MOST_RUNS;
  load();
});
new ResizeObserver(() => chart?.resize()).observe(byId("chart"));
addEventListener("DOMContentLoaded", () => {
  complete = true; // the chart library is deferred like this file
  if (answer && !answer.note) showChart();
});
load();

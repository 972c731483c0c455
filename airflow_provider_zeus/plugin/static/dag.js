// The tab of a DAG: what its job saved, charts, what-if, and the table of its runs.
import {
  airflow, answerBlock, api, byId, choice, dagId, element, fetchJson, figureCell, jobId, offerComparison, pageAddress,
  present, showJobs,
  showLeftOut, showList, sourceBadges, stateBadge, table, template, tileItem, tryAgain, verdictLine,
} from "./ui.js";
import { chartBlock } from "./charts.js";
import { settingsBlock } from "./actions.js";
import { showAlerts } from "./alerts.js";
import { showWhatIf } from "./dag_whatif.js";
import { sortable } from "./sort.js";

const PAGE = 1000; // the longest page of the table
let limit = null;
let skip = 0;
let updateComparison = null; // after the rows have changed

export async function show() {
  const table = fetchJson(api("dags", dagId, "costs", { job_id: jobId }));
  const charts = fetchJson(api("dags", dagId, "charts", { job_id: jobId }));
  charts.catch(() => undefined); // showCharts reports the error, after the table
  const answer = await table;
  showJobs(answer.jobs, answer.job_id ?? jobId);
  present(answer, fill);
  if (!answer.note) await showCharts(charts, answer.job_id);
}

function fill(content, answer) {
  content.replaceChildren(template("dag-view"));
  byId("budgets").replaceChildren(...answer.budgets.map(answerBlock));
  showAlerts(byId("alerts"), answer.alerts, answer.job_id);
  showList(byId("facts"), answer.facts);
  showList(byId("settings"), answer.settings.map((text) => `Live setting: ${text}`));
  byId("settings").after(settingsBlock(dagId, answer.job_id));
  showList(byId("remarks"), answer.remarks);
  byId("store").textContent = `Trial log: ${answer.store}`;
  showLeftOut(answer.left_out);
  for (const kind of ["csv", "json"]) byId(`export-${kind}`).href = api("dags", dagId, "export", { kind, job_id: answer.job_id });
  byId("more").addEventListener("click", () => turn(PAGE, 0));
  byId("older").addEventListener("click", () => turn(PAGE, skip + (limit ?? 0)));
  byId("newer").addEventListener("click", () => turn(PAGE, Math.max(skip - PAGE, 0)));
  sortable(byId("runs"));
  updateComparison = offerComparison(byId("runs"), byId("compare"), byId("choose"), { what: "runs" });
  fillTable(answer);
}

// ---------------------------------------------------------------- charts

async function showCharts(waiting, job) {
  const box = byId("charts");
  try {
    const answer = await waiting;
    byId("headline").replaceChildren(...answer.headline.map(answerBlock));
    byId("headline").removeAttribute("aria-busy");
    byId("shift").textContent = answer.shift;
    byId("shift").hidden = !answer.shift;
    byId("summary-line").replaceChildren(verdictLine(answer.verdict));
    byId("tiles").replaceChildren(...answer.tiles.map(tileItem));
    if (answer.levers) byId("levers").lastElementChild.replaceChildren(table(answer.levers));
    byId("levers").hidden = !answer.levers;
    byId("whose").replaceChildren(`Figures of ${answer.whose || "an unknown device"} `, ...sourceBadges(answer.source));
    showList(byId("left-out"), answer.left_out);
    const wide = [["cost", answer.cost], ["saved", answer.saved]];
    const half = [["belief", answer.belief], ["front", answer.front]];
    box.replaceChildren(...[...wide, ...half].map(([name, chart]) => chartBlock(chart, { name })));
    box.removeAttribute("aria-busy");
    await showWhatIf(byId("what-if"), job, box.querySelector(".front"));
  } catch (problem) {
    byId("headline").remove();
    box.removeAttribute("aria-busy");
    box.replaceChildren(element("p", `The charts cannot be shown: ${problem.message}`, { class: "note" }, ...tryAgain(problem)));
  }
}

// ---------------------------------------------------------------- the table of runs

async function turn(newLimit, newSkip) {
  const status = byId("page-note");
  status.textContent = "Loading …";
  try {
    const answer = await fetchJson(api("dags", dagId, "costs", { job_id: jobId, limit: newLimit, skip: newSkip }));
    [limit, skip] = [newLimit, newSkip];
    if (answer.note) status.textContent = answer.note;
    else fillTable(answer);
    byId("table-box").focus();
  } catch (problem) {
    status.textContent = problem.message;
  }
}

function fillTable(answer) {
  byId("rows").replaceChildren(...answer.rows.map((row) => tableRow(row, answer.job_id)));
  byId("totals").replaceChildren(...answer.totals.map(totalRow));
  updateComparison();
  for (const head of byId("runs").querySelectorAll("[aria-sort]")) head.setAttribute("aria-sort", "none");
  byId("more").hidden = !answer.more || limit !== null;
  byId("older").hidden = !answer.more || limit === null;
  byId("newer").hidden = skip === 0;
  const first = answer.skipped + 1;
  const last = answer.skipped + answer.rows.length;
  byId("page-note").textContent =
    answer.more || skip ? `Rows ${first.toLocaleString()} to ${last.toLocaleString()}, newest first; sums are of these.` : "";
}

function batchSizes({ attempts }) {
  const list = element("span", null, { class: "sizes" });
  attempts.forEach((attempt, i) => {
    if (i) list.append(" → ");
    const gone = attempt.state === "given_up" || (attempt.state === "failed" && i < attempts.length - 1);
    list.append(element(gone ? "s" : "span", attempt.batch_size, { title: attempt.state_text }));
    if (gone) list.append(element("span", ` (${attempt.state_text})`, { class: "unseen" }));
  });
  return list;
}

/** Links to the task's log and XComs in Airflow's UI. */
function taskLinks({ run_id: run, task_id: task, map_index: index }) {
  const path = ["dags", dagId, "runs", run, "tasks", task, ...(index === null ? [] : ["mapped", String(index)])];
  const link = (text, ...more) =>
    element("a", text, { href: airflow(...path, ...more), target: "_top", "aria-label": `${text} of run ${run}` });
  return [link("Log"), " ", link("XCom", "xcom")];
}

function tableRow(row, job) {
  const began = new Date(row.began_at * 1000);
  const name = row.map_index === null ? row.run_id : `${row.run_id} [${row.map_index}]`;
  const run = element("th", null, { scope: "row", "data-sort": row.began_at });
  run.append(choice({ dag: dagId, run: row.run_id, job }, `run ${name}`));
  run.append(element("a", name, { href: pageAddress(dagId, { run: row.run_id, job }), title: name }));
  run.append(element("time", began.toLocaleString([], { dateStyle: "short", timeStyle: "short" }), { datetime: began.toISOString(), title: row.run_type }));
  run.append(element("span", null, { class: "links" }, ...taskLinks(row)));
  const figureToSort = (value) => {
    const cell = figureCell(value);
    cell.dataset.sort = value.value ?? "";
    return cell;
  };
  const sizes = element("td", null, { "data-sort": row.attempts.at(-1)?.batch_size ?? "" }, batchSizes(row));
  return element("tr", null, {},
    run,
    element("td", row.slice_text || "–", { class: "slice", title: row.data_slice }),
    sizes,
    ...[row.energy, row.time, row.cost].map(figureToSort),
    element("td", null, {}, ...sourceBadges(row.source)),
    element("td", null, {}, stateBadge(row.state, row.state_text, row.state_why)),
    element("td", row.phase, { title: row.why }),
    ...[row.limit, row.epochs].map(figureToSort),
  );
}

function totalRow(total) {
  const runs = total.runs === 1 ? "1 run" : `${total.runs.toLocaleString()} runs`;
  return element("tr", null, {},
    element("th", `Sum of ${runs}, ${total.source.text}`, { scope: "row", colspan: "3" }),
    ...[total.energy, total.time, total.cost].map(figureCell),
    element("td", null, {}, ...sourceBadges(total.source)),
    element("td", null, { colspan: "4" }),
  );
}

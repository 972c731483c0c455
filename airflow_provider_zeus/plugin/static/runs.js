// The table of a DAG's runs.
import { button } from "./actions.js";
import { sortableTable } from "./sort.js";
import {
  airflow, api, byId, dagId, element, fetchJson, figureCell, jobId, minuteText, pageAddress, sourceBadges, stateBadge,
} from "./ui.js";

const PAGE = 1000; // the longest page of the table
let limit = null;
let skip = 0;

export function runsTable(_, block, answer) {
  const runs = sortableTable("runs", "rows",
    ["Run", "Data slice", "Batch size", "#Energy", "#Time", "Source", "State", "Choice", "#Limit", "#Epochs"]);
  runs.append(element("tfoot", null, { id: "totals" }));
  const address = api("dags", dagId, "export", { job_id: answer.job_id });
  queueMicrotask(() => fillTable(answer)); // once it is on the page
  const box = element("div", null, { id: "runs-section" },
    element("p", "Export: ", { class: "note" }, element("a", "CSV", { href: address, download: "download" }),
      ", a row for each attempt. ",
      element("span", null, { id: "page-note", role: "status" })),
    element("div", null, { id: "table-box", role: "region", "aria-label": "Table of the runs", tabindex: "0" }, runs),
    element("p", null, {},
      button("Show up to 1,000 runs", () => turn(PAGE, 0), { id: "more" }), " ",
      button("Newer runs", () => turn(PAGE, Math.max(skip - PAGE, 0)), { id: "newer" }), " ",
      button("Older runs", () => turn(PAGE, skip + (limit ?? 0)), { id: "older" })));
  return box;
}

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
  byId("runs").classList.toggle("one-source", new Set(answer.rows.map(({ source }) => source.text).filter(Boolean)).size < 2);
  byId("runs").classList.toggle("no-energy", answer.rows.every(({ source }) => source.kind === "no-source"));
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
    list.append(element(gone ? "s" : "span", attempt.batch_size ?? "–", { title: attempt.state_text }));
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
  run.append(element("a", name, { href: pageAddress(dagId, { run: row.run_id, job }), title: name }));
  if (row.number) run.append(element("span", `Run ${row.number} `, { class: "number" }));
  run.append(element("time", minuteText(began), { datetime: began.toISOString(), title: row.run_type }));
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
    ...[row.energy, row.time].map(figureToSort),
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
    ...[total.energy, total.time].map(figureCell),
    element("td", null, {}, ...sourceBadges(total.source)),
    element("td", null, { colspan: "4" }),
  );
}

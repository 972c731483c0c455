// The tab of a DAG.
import {
  api, byId, dagId, draw, element, fetchJson, figureCell, jobId, pageAddress, present, showJobs, showList,
  sourceBadges, stateBadge, template,
} from "./kit.js";

const MOST_RUNS = 1000;
let limit = null;

export async function show() {
  const answer = await fetchJson(api("dags", dagId, "costs", { job_id: jobId, limit }));
  showJobs(answer.jobs, answer.job_id ?? jobId);
  present(answer, fill);
}

function fill(content, answer) {
  content.replaceChildren(template("dag-view"));
  showList(byId("facts"), answer.facts);
  showList(byId("settings"), answer.settings.map((text) => `Live setting: ${text}`));
  byId("rows").replaceChildren(...answer.rows.map((row) => tableRow(row, answer.job_id)));
  byId("totals").replaceChildren(...answer.totals.map(totalRow));
  byId("more").hidden = !answer.more || limit === MOST_RUNS;
  byId("more").addEventListener("click", () => {
    limit = MOST_RUNS;
    show();
  });
  byId("store").textContent = `Trial log: ${answer.store}`;
  showChart(answer);
}

async function showChart(answer) {
  const note = byId("chart-note");
  note.textContent = [answer.chart_legend, answer.left_out].filter(Boolean).join(" ");
  if (!(await draw(byId("chart"), answer.chart, answer.chart_text))) {
    note.textContent =
      "The chart library is missing here; “pip install -e .” or “make demo” in the provider's checkout brings it. " +
      "The table below is complete without it.";
  } else if (!answer.chart) note.textContent = `No run of known cost yet. ${answer.left_out}`;
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

function tableRow(row, job) {
  const began = new Date(row.began_at * 1000);
  const name = row.map_index === null ? row.run_id : `${row.run_id} [${row.map_index}]`;
  const run = element("th", null, { scope: "row" });
  run.append(element("a", name, { href: pageAddress(dagId, { run: row.run_id, job }), title: name }));
  run.append(element("time", began.toLocaleString(), { datetime: began.toISOString(), title: row.run_type }));
  return element("tr", null, {},
    run,
    element("td", row.slice_text || "–", { class: "slice", title: row.data_slice }),
    element("td", null, {}, batchSizes(row)),
    ...[row.limit, row.epochs, row.energy, row.time, row.cost].map(figureCell),
    element("td", row.phase, { title: row.why }),
    element("td", null, {}, stateBadge(row.state, row.state_text, row.state_why)),
    element("td", null, {}, ...sourceBadges(row.source)),
  );
}

function totalRow(total) {
  const runs = total.runs === 1 ? "1 run" : `${total.runs.toLocaleString()} runs`;
  return element("tr", null, {},
    element("th", `Sum of ${runs}, ${total.source.text}`, { scope: "row", colspan: "5" }),
    ...[total.energy, total.time, total.cost].map(figureCell),
    element("td", null, { colspan: "3" }),
  );
}

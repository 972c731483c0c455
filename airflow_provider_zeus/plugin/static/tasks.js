// Tables of what tasks took: all tasks of a run or of a DAG, and one row for each DAG on the page of all jobs.
import { airflow, api, breakable, dagId, element, fetchJson, figureCell, pageAddress, section, sourceBadges, tryAgain } from "./ui.js";

/** The cells of a TaskLine behind its name. `columns`: which of those that may be empty are shown. */
function figures(line, columns) {
  return [
    ...(columns.runs ? [element("td", line.runs.toLocaleString(), { class: "number" })] : []),
    ...(columns.share ? [figureCell(line.share)] : []),
    figureCell(line.energy),
    figureCell(line.time),
    ...(columns.money ? [figureCell(line.money ?? { text: "–" })] : []),
    ...(columns.co2e ? [figureCell(line.co2e ?? { text: "–" })] : []),
    element("td", null, {}, ...sourceBadges(line.source)),
    ...(columns.state ? [element("td", line.state_text)] : []),
  ];
}

function columnsOf(lines, more) {
  return { ...more, money: lines.some(({ money }) => money !== null), co2e: lines.some(({ co2e }) => co2e !== null) };
}

function head(first, columns) {
  const numbers = [columns.runs && "Runs", columns.share, "Energy", "Time", columns.money && "Money", columns.co2e && "CO₂e"];
  const names = numbers.filter(Boolean).map((name) => element("th", name, { scope: "col", class: "number" }));
  const texts = ["Source", columns.state && "State"].filter(Boolean).map((name) => element("th", name, { scope: "col" }));
  return element("thead", null, {}, element("tr", null, {}, element("th", first, { scope: "col" }), ...names, ...texts));
}

function box(caption, ...children) {
  const grid = element("table", null, { class: "tasks" }, element("caption", caption, { class: "unseen" }), ...children);
  return element("div", null, { class: "table-box", role: "region", "aria-label": caption, tabindex: "0" }, grid);
}

/** A TaskTable: the sums, the tasks, and those below 1 % in a closed part. `address`: of a task's own tab, or null. */
export function taskTable({ caption, totals, tasks, small, note }, address) {
  const lines = [...totals, ...tasks, ...small];
  const hasState = lines.some(({ state_text: text }) => text);
  // Shares of several sources do not add up to 100 %.
  const columns = columnsOf(lines, { share: totals.length > 1 ? "Share of its source" : "Share", runs: !hasState, state: hasState });
  const name = ({ name: text, job_id: job }) => {
    const href = job === null || address === null ? null : address(job);
    return element("th", null, { scope: "row" }, ...(href ? [element("a", null, href, ...breakable(text))] : breakable(text)));
  };
  const row = (line) => element("tr", null, {}, name(line), ...figures(line, columns));
  const sums = totals.map((line) => Object.assign(row({ ...line, share: { text: "" } }), { className: "sum" }));
  const made = element("div", null, {}, box(caption, head("Task", columns), element("tbody", null, {}, ...sums, ...tasks.map(row))));
  if (small.length) {
    const count = small.length === 1 ? "1 task under 1 %" : `${small.length.toLocaleString()} tasks under 1 % each`;
    made.append(element("details", null, { class: "small" }, element("summary", count),
      box(count, head("Task", columns), element("tbody", null, {}, ...small.map(row)))));
  }
  if (note) made.append(element("p", note, { class: "note" }));
  return made;
}

/** All tasks of a DAG, each with a link to its own tab. */
export function tasksBlock(found) {
  return section(found.caption, taskTable(found, (job) => ({ href: pageAddress(dagId, { job }) })));
}

/** A row for each DAG whose tasks are measured from outside; its tasks are fetched when they are opened. */
export function dagsBlock({ caption, dags }) {
  const columns = columnsOf(dags.flatMap(({ lines }) => lines), { runs: true });
  const bodies = dags.map((dag) => dagRows(dag, columns));
  return section(`${caption}, by DAG`, box(caption, head("DAG", columns), ...bodies));
}

function dagRows({ dag_id: dag, tags, owners, lines }, columns) {
  const tab = { href: airflow("dags", dag, "plugin", "zeus-cost"), target: "_top", title: `Tab “Zeus cost” of DAG ${dag}` };
  const about = [...tags, ...owners.map((owner) => `by ${owner}`)].join(" · ");
  const name = element("th", null, { scope: "row", rowspan: String(lines.length) }, element("a", null, tab, ...breakable(dag)));
  if (about) name.append(element("span", about, { class: "note dag tags" }));
  const rows = lines.map((line, i) => element("tr", null, {}, ...(i ? [] : [name]), ...figures(line, columns)));
  const width = 1 + figures(lines[0], columns).length;
  const folded = element("details", null, {}, element("summary", "Its tasks", { "aria-label": `Tasks of DAG ${dag}` }), element("div"));
  folded.addEventListener("toggle", () => folded.open && fill(folded.lastElementChild, dag), { once: true });
  const below = element("tr", null, { class: "folded" }, element("td", null, { colspan: String(width) }, folded));
  return element("tbody", null, {}, ...rows, below);
}

async function fill(place, dag) {
  place.replaceChildren(element("p", "Loading …", { class: "note" }));
  try {
    const found = await fetchJson(api("dags", dag, "tasks"));
    place.replaceChildren(taskTable(found, (job) => ({ href: `${airflow("dags", dag, "plugin", "zeus-cost")}`, target: "_top", title: job })));
  } catch (problem) {
    place.replaceChildren(element("p", problem.message, { class: "note" }, ...tryAgain(problem)));
  }
}

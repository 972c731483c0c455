// Runs, or jobs, side by side.
import { breakable, byId, compared, comparison, element, fetchJson, pageAddress, present, showList, table, template } from "./ui.js";
import { chartBlock } from "./charts.js";

export async function show() {
  const ofJobs = compared.every(({ run }) => run === "");
  byId("title").textContent = ofJobs ? "Zeus cost of several jobs" : "Zeus cost of several runs";
  const dags = new Set(compared.map(({ dag }) => dag));
  byId("back").hidden = false;
  byId("back").textContent = ofJobs ? "All jobs" : "All runs";
  byId("back").href = ofJobs || dags.size > 1 ? "page" : pageAddress(compared[0].dag, { job: compared[0].job });
  present(await fetchJson(`api/compare?${comparison(compared)}`), fill);
}

function fill(content, { places, costs, decisions, remarks, charts }) {
  content.replaceChildren(template("compare-view"));
  showList(byId("remarks"), remarks);
  for (const [id, rows] of Object.entries({ costs, decisions })) {
    byId(id).replaceChildren(table(rows));
    linkHeads(byId(id), places);
  }
  byId("charts").replaceChildren(...charts.map((chart) => chartBlock(chart, { name: "compared" })));
}

/** Each head of a column leads to the page of its run or job. */
function linkHeads(box, places) {
  const heads = box.querySelectorAll("thead th");
  heads.forEach((head, i) => {
    const { dag_id: dag, run_id: run, job_id: job } = places[i];
    head.replaceChildren(element("a", null, { href: pageAddress(dag, { run, job }) }, ...breakable(head.textContent)));
  });
}

// Shows the view that the address names: a run (?dag_id=&run_id=), a DAG (?dag_id=), several to compare, or all jobs.
import { followTheme } from "./charts.js";
import { byId, closeByEscape, compared, dagId, jobId, leaveSandbox, pageAddress, runId, say, tryAgain } from "./ui.js";

const view = compared.length > 1 ? "compare" : runId !== null ? "run" : dagId !== null ? "dag" : "overview";

followTheme();
leaveSandbox();
closeByEscape();
document.body.dataset.view = view;
byId("job").addEventListener("change", () => location.assign(pageAddress(dagId, { run: runId, job: byId("job").value })));
if (view === "run") {
  byId("title").textContent = `Zeus cost of run ${runId}`;
  byId("back").hidden = false;
  byId("back").href = pageAddress(dagId, { job: jobId });
}
try {
  const { show } = await import(`./${view}.js`);
  await show();
} catch (problem) {
  say(problem.message, true);
  byId("message").append(...tryAgain(problem));
}

// Shows the page that the address names: a run (?dag_id=&run_id=), a DAG (?dag_id=), or all jobs.
import { drawPage, fillSlow } from "./blocks.js";
import { followTheme } from "./charts.js";
import { show as showRun } from "./run.js";
import {
  api, byId, closeByEscape, dagId, fetchJson, jobId, leaveSandbox, pageAddress, present, runId, say, showJobs, tryAgain,
} from "./ui.js";

const VIEWS = {
  async overview() {
    byId("title").textContent = "Zeus";
    present(await fetchJson(api("jobs")), drawPage);
  },
  async dag() {
    const quick = fetchJson(api("dags", dagId, "costs", { job_id: jobId }));
    const slow = fetchJson(api("dags", dagId, "charts", { job_id: jobId }));
    slow.catch(() => undefined); // fillSlow reports the error, below what is there
    const answer = await quick;
    showJobs(answer.jobs, answer.job_id ?? jobId, "All tasks");
    present(answer, drawPage);
    if (answer.note || !(await fillSlow(answer.blocks, slow))) return;
    const first = document.querySelector(".cost > .chart"); // on one screen with what is above it
    if (first) { // with its caption, where there is room for both
      const free = innerHeight - first.getBoundingClientRect().top - 16;
      const beside = free - first.nextElementSibling.offsetHeight;
      first.style.setProperty("height", `${Math.min(Math.max(beside < 200 ? free : beside, 180), 340)}px`);
    }
  },
  async run() {
    Object.assign(byId("back"), { textContent: "All runs", href: pageAddress(dagId, { job: jobId }), hidden: false });
    byId("title").textContent = `Zeus cost of run ${runId}`;
    await showRun();
  },
};

const view = runId !== null ? "run" : dagId !== null ? "dag" : "overview";
followTheme();
leaveSandbox();
closeByEscape();
document.body.dataset.view = view;
byId("job").addEventListener("change", () => location.assign(pageAddress(dagId, { run: runId, job: byId("job").value })));
try {
  await VIEWS[view]();
} catch (problem) {
  say(problem.message, true);
  byId("message").append(...tryAgain(problem));
}

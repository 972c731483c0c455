// The tab of a run.
import {
  api, byId, dagId, element, fetchJson, figure, jobId, present, runId, showJobs, showList, sourceBadges, stateBadge,
  template,
} from "./kit.js";

export async function show() {
  const answer = await fetchJson(api("dags", dagId, "runs", runId, "costs", { job_id: jobId }));
  showJobs(answer.jobs, answer.job_id);
  present(answer, fill);
}

function fill(content, answer) {
  content.replaceChildren(template("run-view"));
  byId("parts").replaceChildren(...answer.parts.map((part) => partSection(part)));
  byId("store").textContent = `Trial log: ${answer.store}`;
}

function partSection(part) {
  const facts = element("ul", null, { class: "facts", "aria-label": "What the job is after" });
  showList(facts, part.facts);
  const settings = element("ul", null, { class: "facts live", "aria-label": "Live settings" });
  showList(settings, part.settings.map((text) => `Live setting: ${text}`));
  const attempts = element("ol", null, { class: "attempts" }, ...part.attempts.map(attemptItem));
  const name = `Task ${part.title}`;
  return element("section", null, { class: "part", "aria-label": name }, element("h2", name), facts, settings, attempts);
}

function attemptItem(attempt) {
  const head = element("p", null, { class: "attempt-head" });
  head.append(element("strong", `Batch size ${attempt.batch_size}`), " ");
  head.append(stateBadge(attempt.state, attempt.state_text), " ", ...sourceBadges(attempt.source));
  const figures = element("dl");
  const named = [
    ["Cost", attempt.cost],
    ["of it profiling", attempt.excess],
    ["Energy", attempt.energy],
    ["Time", attempt.time],
    ["Epochs", attempt.epochs],
    ["Power limit", attempt.limit],
  ];
  for (const [name, value] of named) figures.append(element("div", null, {}, element("dt", name), figure("dd", value)));
  const where = attempt.device ? `${attempt.where}, on ${attempt.device}` : attempt.where;
  return element("li", null, {},
    head,
    sentence("Why it was chosen", attempt.why),
    sentence("Why it ended", attempt.ended),
    figures,
    element("p", where, { class: "note" }),
  );
}

function sentence(name, text) {
  return element("p", null, {}, element("span", `${name}: `, { class: "note" }), text);
}

// Shared by all views: elements, addresses, fetching, figures, badges, tables. Charts are in charts.js.
// Data is set as text only, never as HTML. Figures arrive as text with their unit; nothing is converted here.

const parameters = new URLSearchParams(location.search);
export const dagId = parameters.get("dag_id"); // null: the page of all jobs
export const runId = parameters.get("run_id"); // null: the page of a DAG
export const jobId = parameters.get("job_id"); // null: the first job

export const byId = (id) => document.getElementById(id);

export function element(name, text, attributes = {}, ...children) {
  const created = document.createElement(name);
  if (text !== undefined && text !== null) created.textContent = text;
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== "") created.setAttribute(key, value);
  }
  created.append(...children);
  return created;
}

/** A name whose line may break after dots, dashes and underscores, but not within a word or a date. */
export function breakable(name) {
  return name.split(/(?<=[._-])(?=[^._\-\d])|(?<=_)(?=\d)|(?<=\d)(?=T\d)/).flatMap((part, i) => (i ? [element("wbr"), part] : [part]));
}

/** A copy of the content of <template id="...">. */
export function template(id) {
  return byId(id).content.cloneNode(true);
}

// ---------------------------------------------------------------- addresses: relative, so they work below a path prefix

/** Address of the page of a DAG, or of one of its runs. */
export function pageAddress(dag, { run = null, job = null } = {}) {
  const query = new URLSearchParams(dag === null ? {} : { dag_id: dag });
  if (run !== null) query.set("run_id", run);
  if (job) query.set("job_id", job);
  return `page?${query}`;
}

/** Escape closes the innermost open block around the focus, whose summary takes it. */
export function closeByEscape() {
  document.addEventListener("keydown", (event) => {
    const block = event.key === "Escape" && !event.defaultPrevented && event.target.closest?.("details[open]");
    if (!block) return;
    block.open = false;
    block.querySelector("summary").focus();
    event.preventDefault();
  });
}

/** Put one element in the place of another, the focus too. */
export function replace(old, created) {
  const focused = old.contains(document.activeElement);
  old.replaceWith(created);
  if (focused) created.focus();
}

/** Address of a data route, without parameters that are null: api("dags", dagId, "costs", {limit: 5}). */
export function api(...parts) {
  const query = new URLSearchParams();
  if (typeof parts.at(-1) === "object") {
    for (const [key, value] of Object.entries(parts.pop())) if (value !== null && value !== "") query.set(key, value);
  }
  return `api/${parts.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
}

/** Address in Airflow's own UI, two folders above this page: airflow("dags", dagId, "runs", runId). */
export function airflow(...parts) {
  return `../${parts.map(encodeURIComponent).join("/")}`;
}

/**
 * Make links out of the page (target _top) and downloads work. The sandbox in which Airflow shows the page forbids
 * both, so the outer page, which has the same origin, follows them.
 */
export function leaveSandbox() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[target=_top], a[download]");
    if (!link || parent === window || event.button !== 0) return;
    const outer = outerDocument();
    if (!outer) return;
    event.preventDefault();
    const twin = outer.createElement("a");
    twin.href = link.href;
    if (link.hasAttribute("download")) twin.download = link.download;
    else if (event.ctrlKey || event.metaKey || event.shiftKey) twin.target = "_blank";
    outer.body.append(twin);
    twin.click();
    twin.remove();
  });
}

function outerDocument() {
  try {
    return top.document;
  } catch {
    return null; // the outer page has another origin
  }
}

// ---------------------------------------------------------------- fetching

const PROBLEMS = {
  401: "Your session has expired. Log in to Airflow again and reload this page.",
  403: "You do not have permission to see this.",
  404: "There is no such DAG or run.",
  429: "Airflow is busy. Try again in a minute.",
};

/** Message of an error response: its invalid fields, a sentence of our routes, a known status, or its detail. */
function errorText(status, detail) {
  if (Array.isArray(detail)) return detail.map(({ loc, msg }) => `${loc.at(-1)}: ${msg}`).join("; ");
  const sentence = typeof detail === "string" && detail.endsWith(".") ? detail : null; // only our routes send sentences
  return sentence ?? PROBLEMS[status] ?? detail;
}

const RETRY_MS = 60_000; // how long a request is retried while Airflow is busy
const RETRY_AFTER_S = 2; // where the response names no time

const AT_ONCE = 2; // the server answers so many requests of these pages at a time, and refuses what waits too long
const queued = [];
let free = AT_ONCE;

/** As fetch(), but with AT_ONCE requests of this page under way at most. */
async function fetchInTurn(address, options) {
  if (free > 0) free -= 1;
  else await new Promise((turn) => { queued.push(turn); });
  try {
    return await fetch(address, options);
  } finally {
    const turn = queued.shift();
    if (turn) turn();
    else free += 1;
  }
}

/** As fetch(), but retries while Airflow answers 429. The waits are random, so that retries do not come together. */
async function fetchWithRetry(address, options) {
  const until = performance.now() + RETRY_MS;
  for (;;) {
    const response = await fetchInTurn(address, options);
    const wait = (Number(response.headers.get("Retry-After")) || RETRY_AFTER_S) * 1000 * (1 + Math.random() / 2);
    if (response.status !== 429 || performance.now() + wait > until) return response;
    await new Promise((over) => { setTimeout(over, wait); });
  }
}

/** JSON of a data route. Throws an Error with a message for people; its `busy` is true where a later retry may help. */
export async function fetchJson(address, options = {}) {
  let response;
  try {
    const headers = { Accept: "application/json", ...options.headers };
    response = await fetchWithRetry(address, { credentials: "same-origin", ...options, headers });
  } catch {
    throw new Error("Airflow cannot be reached. Reload this page later.");
  }
  let body = {};
  try {
    body = await response.json();
  } catch {
    // not JSON: a proxy answered
  }
  if (response.ok) return body;
  const message = body.problem ?? errorText(response.status, body.detail) ?? `This cannot be read (status ${response.status}).`;
  throw Object.assign(new Error(message), { busy: response.status === 429 });
}

/** A button "Try again" where a retry may help, to be put behind the message of a problem. */
export function tryAgain(problem) {
  if (!problem.busy) return [];
  const again = element("button", "Try again", { type: "button" });
  again.addEventListener("click", () => location.reload());
  return [" ", again];
}

/** Show a line instead of the view: loading, empty, or a problem. null shows the view. */
export function say(text, isProblem = false) {
  if (text !== null) byId("message").textContent = text;
  byId("message").classList.toggle("problem", isProblem);
  byId("message").hidden = text === null;
  byId("content").hidden = text !== null;
}

/** Show `answer` by `showIn(content, answer)`, or its note instead. */
export function present(answer, showIn) {
  if (answer.note) return say(answer.note);
  say(null);
  showIn(byId("content"), answer);
  return undefined;
}

// ---------------------------------------------------------------- figures and badges

/** A figure as text, with its exact value on hover; `name` is the element's. */
// A time of the reader's zone as 2026-11-29 16:38: no reader takes the day for the month.
export const minuteText = (moment) => moment.toLocaleString("sv-SE", { dateStyle: "short", timeStyle: "short" });

export function figure(name, { text, exact }, attributes = {}) {
  return element(name, text, { title: exact, ...attributes });
}

export function figureCell(value) {
  return figure("td", value, { class: "number" });
}

export function badge(text, kind, title) {
  return element("span", text, { class: `badge ${kind}`, title });
}

export function stateBadge(state, text, title) {
  return badge(text, `state-${state}`, title);
}

/** Badge of the energy source of figures; none where nothing was measured. */
export function sourceBadges(source) {
  return source.text ? [badge(source.text, source.kind, source.why)] : [];
}

/** A text whose figures and ranges stay on one line with their units. */
export const unbroken = (text) =>
  text.replace(/(?<=\d) (?=%|k?Wh?|min|h|s|to [−\d])|(?<=\d (?:to|min|h)) (?=[−\d])|(?<=%) (?=sure)/g, "\u00a0");

/** The first line of a page: a Sentence, its intervals behind the words that say how sure it is, and the one badge. */
export function sentenceLine({ text, sure, exact, source }) {
  const at = exact ? text.indexOf(sure) : text.length;
  const parts = [text.slice(0, at), text.slice(at, at + sure.length), text.slice(at + sure.length)].map(unbroken);
  const spread = parts[1] ? [element("abbr", parts[1], { title: exact })] : [];
  return element("p", null, { class: "sentence", role: "status" }, parts[0], ...spread, parts[2], " ", ...sourceBadges(source));
}

/** A Tile: one figure with its name and note. */
function tileItem({ name, figure: value, note, kind }) {
  return element("li", null, { class: `tile ${kind}` },
    element("div", name, { class: "tile-name" }), figure("div", value, { class: "tile-figure" }), element("div", unbroken(note), { class: "note" }));
}

/** An Answer: its question, its figures and its note. */
export function answerBlock({ question, about, figures, note }) {
  return element("div", null, { class: "answer", role: "group", "aria-label": question },
    element("p", null, { class: "question" }, element("strong", question), element("span", ` ${about}`, { class: "note" })),
    ...(figures.length ? [element("ul", null, { class: "figures" }, ...figures.map(tileItem))] : []),
    ...(note ? [element("p", note, { class: "note" })] : []));
}

/** A part of a page under a heading. */
export function section(title, ...children) {
  return element("section", null, { "aria-label": title }, element("h2", title), ...children);
}

/** Fill the choice of jobs; hidden where there is only one. `all`: name of the choice of all of them. */
export function showJobs(jobs, chosen, all) {
  const options = jobs.map((job) => element("option", job, { value: job }));
  options.unshift(Object.assign(element("option", all), { value: "" }));
  for (const option of options) option.selected = option.value === (chosen ?? "");
  byId("job").replaceChildren(...options);
  byId("job-choice").hidden = jobs.length < 2;
}

// ---------------------------------------------------------------- tables

/** A models.Table: caption, column and row headers. */
export function table({ caption, columns, numeric, rows }) {
  const kind = (i) => (numeric[i] ? { class: "number" } : {});
  const head = element("tr", null, {}, ...columns.map((text, i) => (text ? element("th", text, { scope: "col", ...kind(i) }) : element("td"))));
  const body = rows.map((row) =>
    element("tr", null, {}, ...row.map((text, i) =>
      i ? element("td", text, kind(i)) : element("th", text, { scope: "row", ...kind(i) }))));
  const grid = element("table", null, {}, element("caption", caption, { class: "unseen" }));
  grid.append(element("thead", null, {}, head), element("tbody", null, {}, ...body));
  return element("div", null, { class: "table-box", role: "region", "aria-label": caption, tabindex: "0" }, grid);
}

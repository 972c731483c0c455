// What all views share: elements, addresses, fetching, figures, badges, tables; charts.js has the charts. What comes from
// outside is only ever set as text. Figures arrive with their unit and their exact value; nothing is converted here.

const asked = new URLSearchParams(location.search);
export const dagId = asked.get("dag_id"); // null: the page of all jobs
export const runId = asked.get("run_id"); // null: the page of a DAG
export const jobId = asked.get("job_id"); // null: the first

export const byId = (id) => document.getElementById(id);

export function element(name, text, attributes = {}, ...children) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== "") made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** A name that may be broken after its dots, dashes and underscores, and not within a word. */
export function breakable(name) {
  return name.split(/(?<=[._-])(?=[^._-])/).flatMap((part, i) => (i ? [element("wbr"), part] : [part]));
}

/** The content of <template id="..."> of the page, to be filled in. */
export function template(id) {
  return byId(id).content.cloneNode(true);
}

// ---------------------------------------------------------------- addresses: relative, so they hold below a path prefix

/** Our page of a DAG, or of one of its runs. */
export function pageAddress(dag, { run = null, job = null } = {}) {
  const query = new URLSearchParams(dag === null ? {} : { dag_id: dag });
  if (run !== null) query.set("run_id", run);
  if (job) query.set("job_id", job);
  return `page?${query}`;
}

/** A data route; `parts` are encoded, values that are null are left out: api("dags", dagId, "costs", {limit: 5}). */
export function api(...parts) {
  const query = new URLSearchParams();
  if (typeof parts.at(-1) === "object") {
    for (const [key, value] of Object.entries(parts.pop())) if (value !== null && value !== "") query.set(key, value);
  }
  return `api/${parts.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
}

/** An address of Airflow's own UI, two folders above ours: airflow("dags", dagId, "runs", runId). */
export function airflow(...parts) {
  return `../${parts.map(encodeURIComponent).join("/")}`;
}

/**
 * Links out of the page (target _top) and downloads. Airflow shows the page in a sandbox that forbids a frame both, so
 * the page around it, which is of the same origin, follows them.
 */
export function leaveSandbox() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[target=_top], a[download]");
    if (!link || parent === window || event.button !== 0) return;
    const outside = outerDocument();
    if (!outside) return;
    event.preventDefault();
    const twin = outside.createElement("a");
    twin.href = link.href;
    if (link.hasAttribute("download")) twin.download = link.download;
    else if (event.ctrlKey || event.metaKey || event.shiftKey) twin.target = "_blank";
    outside.body.append(twin);
    twin.click();
    twin.remove();
  });
}

function outerDocument() {
  try {
    return top.document;
  } catch {
    return null; // shown inside a page of another origin
  }
}

// ---------------------------------------------------------------- fetching

const PROBLEMS = {
  401: "Your login has ended. Log in to Airflow again and reload this page.",
  403: "You may not see this.",
  404: "There is no such DAG or run.",
  429: "Airflow is busy. Try again in a minute.",
};

/** What a refusal says: the fields that were odd, our own words for what is usual, else the words of who refused. */
function refusal(status, detail) {
  if (Array.isArray(detail)) return detail.map(({ loc, msg }) => `${loc.at(-1)}: ${msg}`).join("; ");
  const own = typeof detail === "string" && detail.endsWith(".") ? detail : null; // a sentence: from one of our routes
  return own ?? PROBLEMS[status] ?? detail;
}

const PATIENCE_MS = 60_000; // with an Airflow that is busy
const USUAL_WAIT_S = 2; // where it does not say how long

/** As fetch(), but asks again, when Airflow says, while it is busy. Those that were refused together come back apart. */
async function fetchPatiently(address, options) {
  const until = performance.now() + PATIENCE_MS;
  for (;;) {
    const response = await fetch(address, options);
    const wait = (Number(response.headers.get("Retry-After")) || USUAL_WAIT_S) * 1000 * (1 + Math.random() / 2);
    if (response.status !== 429 || performance.now() + wait > until) return response;
    await new Promise((over) => { setTimeout(over, wait); });
  }
}

/** JSON of a data route. Throws an Error whose message is for people; `busy`: to try again later may help. */
export async function fetchJson(address, options = {}) {
  let response;
  try {
    const headers = { Accept: "application/json", ...options.headers };
    response = await fetchPatiently(address, { credentials: "same-origin", ...options, headers });
  } catch {
    throw new Error("Airflow cannot be reached. Reload this page when it runs again.");
  }
  let body = {};
  try {
    body = await response.json();
  } catch {
    // no JSON: a proxy in between answered
  }
  if (response.ok) return body;
  const said = body.problem ?? refusal(response.status, body.detail) ?? `This cannot be read (status ${response.status}).`;
  throw Object.assign(new Error(said), { busy: response.status === 429 });
}

/** Behind the words of a problem: a button, where to try again may help. */
export function tryAgain(problem) {
  if (!problem.busy) return [];
  const again = element("button", "Try again", { type: "button" });
  again.addEventListener("click", () => location.reload());
  return [" ", again];
}

/** The one line in place of the view: loading, empty, or a problem. null: the view is there. */
export function say(text, isProblem = false) {
  if (text !== null) byId("message").textContent = text;
  byId("message").classList.toggle("problem", isProblem);
  byId("message").hidden = text === null;
  byId("content").hidden = text !== null;
}

/** Draws `answer`, or says its note. `showIn(content, answer)` fills the view. */
export function present(answer, showIn) {
  if (answer.note) return say(answer.note);
  say(null);
  showIn(byId("content"), answer);
  return undefined;
}

// ---------------------------------------------------------------- figures and badges

/** A figure for people, exact on hover; `name` is the element. */
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

/** Where figures come from; nothing while nothing was measured. */
export function sourceBadges(source) {
  return source.text ? [badge(source.text, source.kind, source.why)] : [];
}

const SIGNS = { saved: "✓", lost: "✗", even: "≈", unknown: "?", running: "…" };

/** A Verdict: a sentence with a sign before it. */
export function verdictLine({ kind, word, text }) {
  const sign = element("span", SIGNS[kind], { class: "sign", "aria-hidden": "true" });
  return element("p", null, { class: `verdict verdict-${kind}` }, sign, element("strong", ` ${word}: `), text);
}

/** A Tile: one figure with its name, badge and note. */
export function tileItem({ name, figure: value, note, kind, source }) {
  const head = element("div", null, { class: "tile-name" }, name, " ", ...sourceBadges(source));
  return element("li", null, { class: `tile ${kind}` },
    head, figure("div", value, { class: "tile-figure" }), element("div", note, { class: "note" }));
}

export function showList(list, texts) {
  list.replaceChildren(...texts.map((text) => element("li", text)));
  list.hidden = texts.length === 0;
}

/** Trials that cannot be read, in a sentence; nothing where there are none. */
export function showLeftOut(text) {
  const box = byId("unreadable");
  box.textContent = text;
  box.hidden = !text;
}

/** "Job ..." with a choice of several. */
export function showJobs(jobs, chosen) {
  const options = jobs.map((job) => element("option", job, { value: job }));
  for (const option of options) option.selected = option.value === chosen;
  byId("job").replaceChildren(...options);
  byId("job-choice").hidden = jobs.length < 2;
}

// ---------------------------------------------------------------- tables

/** A models.Table: caption, column and row headers. */
export function table({ caption, columns, numeric, rows }) {
  const kind = (i) => (numeric[i] ? { class: "number" } : {});
  const head = element("tr", null, {}, ...columns.map((text, i) => element("th", text, { scope: "col", ...kind(i) })));
  const lines = rows.map((row) =>
    element("tr", null, {}, ...row.map((text, i) =>
      i ? element("td", text, kind(i)) : element("th", text, { scope: "row", ...kind(i) }))));
  const made = element("table", null, {}, element("caption", caption, { class: "unseen" }));
  made.append(element("thead", null, {}, head), element("tbody", null, {}, ...lines));
  return element("div", null, { class: "table-box", role: "region", "aria-label": caption, tabindex: "0" }, made);
}

// Events of a job: those that are open, with a button that silences their kind, and a closed block of those that ended.
import { button } from "./actions.js";
import { api, dagId, element, fetchJson, pageAddress, tryAgain } from "./ui.js";

/** Fill the section of the events; hidden where there is nothing to say. */
export function showAlerts(section, alerts, job) {
  const box = section.lastElementChild;
  const parts = [];
  if (alerts.problem) parts.push(element("p", alerts.problem, { class: "note", role: "status" }));
  if (alerts.open.length) parts.push(list(alerts.open, "Open alerts"));
  else if (!alerts.problem) parts.push(element("p", "No alert is open.", { class: "note" }));
  for (const { kind, text } of alerts.silenced) {
    const line = element("p", `${text} `, { class: "note" });
    if (alerts.may_edit) line.append(button("Hear it again", () => change(kind, false), { "data-kind": kind }));
    parts.push(line);
  }
  if (alerts.past.length) {
    const title = element("summary", `History (${alerts.past.length})`);
    parts.push(element("details", null, {}, title, list(alerts.past, "Alerts that ended")));
  }
  box.replaceChildren(...parts);
  section.hidden = !(alerts.problem || alerts.open.length || alerts.silenced.length || alerts.past.length);

  function list(rows, label) {
    return element("ul", null, { class: "alerts", "aria-label": label }, ...rows.map(item));
  }

  function item(row) {
    const head = element("p", null, {}, element("strong", row.name), " ",
      element("a", row.when, { href: pageAddress(dagId, { run: row.run_id, job }), title: row.run_id }));
    const sent = element("p", row.sent, { class: row.not_sent ? "note warn" : "note" });
    if (alerts.may_edit && !row.silenced && alerts.open.includes(row)) {
      const names = { "data-kind": row.kind, "aria-label": `Silence alerts of kind ${row.name}` };
      sent.append(" ", button("Silence", () => change(row.kind, true), names));
    }
    return element("li", null, { class: alerts.open.includes(row) ? "open" : "" },
      head, element("p", row.sentence), element("p", row.remedy, { class: "note" }), sent);
  }

  async function change(kind, silenced) {
    try {
      const body = JSON.stringify({ job_id: job, kind, silenced });
      const options = { method: "POST", headers: { "Content-Type": "application/json" }, body };
      showAlerts(section, await fetchJson(api("dags", dagId, "alerts"), options), job);
      section.querySelector(`button[data-kind="${CSS.escape(kind)}"]`)?.focus(); // the one that takes it back
    } catch (problem) {
      box.prepend(element("p", problem.message, { class: "problem-text", role: "alert" }, ...tryAgain(problem)));
    }
  }
}

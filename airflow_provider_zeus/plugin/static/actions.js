// Controls of a job's live settings: pause exploration, pin a batch size, let Zeus choose again, measure the default.
// A button first shows the effect of a change; the change is sent when it is confirmed.
import { api, element, fetchJson, tryAgain } from "./ui.js";

/** The controls of a job, which load its settings. `changed` is called after a change. */
export function controls(dag, job, changed = () => {}) {
  const box = element("div", null, { class: "controls", role: "group", "aria-label": `Live settings of job ${job}` });
  const address = api("dags", dag, "settings");
  fetchJson(api("dags", dag, "settings", { job_id: job })).then((settings) => fill(settings), say);
  return box;

  function say(problem) {
    box.replaceChildren(element("p", problem.message, { class: "problem-text", role: "alert" }, ...tryAgain(problem)));
  }

  /** `focused`: the reader was on a control that is gone, so the first one takes the focus. */
  function fill(settings, focused = false) {
    const paused = settings.paused ? "Exploration is paused." : "Exploration is on.";
    const pinned = settings.pinned === null ? "No batch size is pinned." : `Batch size ${settings.pinned} is pinned.`;
    const parts = [element("p", `${paused} ${pinned}`, { class: "held", role: "status" })];
    if (settings.problem) parts.push(element("p", settings.problem, { class: "problem-text", role: "alert" }));
    if (settings.changed) parts.push(element("p", `Last change: ${settings.changed}`, { class: "note" }));
    if (settings.may_edit) parts.push(buttons(settings));
    else parts.push(element("p", "Users who may edit this DAG can change this.", { class: "note" }));
    box.onkeydown = null;
    box.replaceChildren(...parts);
    if (focused) box.querySelector("button")?.focus();
  }

  function buttons(settings) {
    const row = element("p", null, { class: "buttons" });
    if (settings.paused || settings.pinned !== null) {
      row.append(button("Let Zeus choose again", () => ask(settings, settings.resume_text, { resume: true })));
    }
    if (!settings.paused) {
      row.append(button("Pause exploration", () => ask(settings, settings.pause_text, { pause_exploration: true })));
    }
    if (settings.audit_text) {
      row.append(button("Measure the default in the next run", () => ask(settings, settings.audit_text, { audit: true })));
    }
    const size = element("select", null, { "aria-label": "Batch size to pin" });
    for (const b of settings.batch_sizes) {
      const text = b === settings.default_batch_size ? `${b} (default)` : b;
      size.append(element("option", text, { value: b }));
    }
    size.value = settings.pinned ?? settings.default_batch_size;
    row.append(size, button("Pin this batch size", () =>
      ask(settings, `Batch size ${size.value}: ${settings.pin_text}`, { pin_batch_size: Number(size.value) })));
    return row;
  }

  function ask(settings, text, change) {
    const back = () => fill(settings, true);
    const confirm = button("Do it", () => send(change, settings));
    const cancel = button("Cancel", back);
    box.onkeydown = (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault(); // closes the question, not what is around it
      back();
    };
    const question = element("p", text, { class: "question", role: "alert" });
    box.replaceChildren(question, element("p", null, { class: "buttons" }, confirm, cancel));
    confirm.focus();
  }

  async function send(change, settings) {
    try {
      const body = JSON.stringify({ job_id: job, ...change });
      fill(await fetchJson(address, { method: "POST", headers: { "Content-Type": "application/json" }, body }), true);
      changed();
    } catch (problem) {
      say(problem);
      const back = button("Back", () => fill(settings, true));
      box.append(element("p", null, { class: "buttons" }, back));
      back.focus();
    }
  }
}

export function button(text, pressed, attributes = {}) {
  const made = element("button", text, { type: "button", ...attributes });
  made.addEventListener("click", pressed);
  return made;
}

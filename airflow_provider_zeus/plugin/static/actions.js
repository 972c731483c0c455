// Pause or resume exploration, pin or unpin a batch size: a block for one job, to be put anywhere.
// A button first says what will happen with the next run; nothing is sent before that is confirmed.
import { api, element, fetchJson, tryAgain } from "./kit.js";

/** The block of one job; it fills itself. `changed` is called after a change. */
export function controls(dag, job, changed = () => {}) {
  const box = element("div", null, { class: "controls", role: "group", "aria-label": `Live settings of job ${job}` });
  const address = api("dags", dag, "settings");
  fetchJson(api("dags", dag, "settings", { job_id: job })).then(fill, say);
  return box;

  function say(problem) {
    box.replaceChildren(element("p", problem.message, { class: "problem-text", role: "alert" }, ...tryAgain(problem)));
  }

  function fill(held) {
    const paused = held.paused ? "Exploration is paused." : "Exploration is on.";
    const pinned = held.pinned === null ? "No batch size is pinned." : `Batch size ${held.pinned} is pinned.`;
    const parts = [element("p", `${paused} ${pinned}`, { class: "held", role: "status" })];
    if (held.problem) parts.push(element("p", held.problem, { class: "problem-text", role: "alert" }));
    if (held.changed) parts.push(element("p", `Last change: ${held.changed}`, { class: "note" }));
    if (held.may_edit) parts.push(buttons(held));
    else parts.push(element("p", "Who may edit this DAG may change that.", { class: "note" }));
    box.replaceChildren(...parts);
  }

  function buttons(held) {
    const row = element("p", null, { class: "buttons" });
    row.append(button(held.paused ? "Resume exploration" : "Pause exploration", () =>
      ask(held, held.pause_text, { pause_exploration: !held.paused })));
    if (held.pinned !== null) row.append(button("Unpin", () => ask(held, held.unpin_text, { unpin: true })));
    const size = element("select", null, { "aria-label": "Batch size to pin" });
    for (const b of held.batch_sizes) {
      const text = b === held.default_batch_size ? `${b} (default)` : b;
      size.append(element("option", text, { value: b }));
    }
    size.value = held.pinned ?? held.default_batch_size;
    row.append(size, button("Pin this batch size", () =>
      ask(held, `Batch size ${size.value}: ${held.pin_text}`, { pin_batch_size: Number(size.value) })));
    return row;
  }

  function ask(held, text, change) {
    const confirm = button("Do it", () => send(change));
    const cancel = button("Cancel", () => fill(held));
    const question = element("p", text, { class: "question", role: "alert" });
    box.replaceChildren(question, element("p", null, { class: "buttons" }, confirm, cancel));
    confirm.focus();
  }

  async function send(change) {
    try {
      const body = JSON.stringify({ job_id: job, ...change });
      fill(await fetchJson(address, { method: "POST", headers: { "Content-Type": "application/json" }, body }));
      changed();
    } catch (problem) {
      say(problem);
    }
  }
}

function button(text, pressed) {
  const made = element("button", text, { type: "button" });
  made.addEventListener("click", pressed);
  return made;
}

/** The same, folded. */
export function settingsBlock(dag, job) {
  const block = element("details", null, { class: "settings-block" }, element("summary", "Pause exploration or pin a batch size"));
  block.addEventListener("toggle", () => block.append(controls(dag, job)), { once: true });
  return block;
}

// What-if: predictions from the log for other weights and prices. Nothing is trained or stored.
import { updateChart } from "./charts.js";
import { api, dagId, element, fetchJson, table, tryAgain } from "./ui.js";

const WAIT_MS = 150; // after the last change of a field

/** Fill `box`. The line of equal cost in the chart `front` follows the weights. */
export async function showWhatIf(box, job, front) {
  const form = element("form", null, { class: "what-if-form", "aria-label": "What if" });
  const text = element("p", null, { id: "what-if-text", role: "status" });
  const rows = element("div", null, { id: "what-if-table" });
  const again = element("button", "As today", { type: "button" });
  let timer = null;
  let newest = 0;

  const ask = async (wish) => {
    const own = ++newest;
    try {
      const answer = await fetchJson(api("dags", dagId, "what-if", { job_id: job, ...wish }));
      if (own !== newest) return null;
      text.textContent = answer.note ?? answer.text;
      if (answer.table) rows.replaceChildren(table(answer.table));
      if (front && answer.front) updateChart(front, answer.front);
      return answer;
    } catch (problem) {
      if (own === newest) text.replaceChildren(`No answer: ${problem.message}`, ...tryAgain(problem));
      return null;
    }
  };

  const changed = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (form.reportValidity()) ask(Object.fromEntries(new FormData(form)));
    }, WAIT_MS);
  };

  const fill = (inputs) => form.replaceChildren(...inputs.map(field), again);
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  again.addEventListener("click", async () => {
    const answer = await ask({});
    if (!answer) return;
    fill(answer.asked);
    again.focus();
  });

  const first = await ask({});
  if (first) fill(first.asked);
  box.replaceChildren(form, text, rows);
}

function field({ name, label, value, most, step }) {
  const number = element("input", null, { type: "number", name, min: "0", max: most, step: "any", value });
  const made = element("label", null, { class: "what-if-field" }, element("span", label), number);
  if (most > 1) return made;
  // A slider beside the number holds the same value; only the number is sent.
  const slider = element("input", null, { type: "range", min: "0", max: most, step, value, "aria-label": `${label}, slider` });
  number.required = true;
  slider.addEventListener("input", () => { number.value = slider.value; });
  number.addEventListener("input", () => { slider.value = number.value; });
  const together = element("div", null, { class: "what-if-field" }, made, slider);
  made.className = "";
  return together;
}

// What-if: weights and prices are moved, the log answers. Nothing is trained, nothing is kept.
import { updateChart } from "./charts.js";
import { api, dagId, element, fetchJson, sourceBadges, table, tryAgain } from "./kit.js";

const WAIT_MS = 150; // after the last move

/** Fills `box`; `front` is the chart whose line of equal cost follows. */
export async function showWhatIf(box, job, front) {
  const form = element("form", null, { class: "what-if-form", "aria-label": "What if" });
  const said = element("p", null, { id: "what-if-text", role: "status" });
  const rows = element("div", null, { id: "what-if-table" });
  const again = element("button", "As today", { type: "button" });
  let timer = null;
  let newest = 0;

  const ask = async (wish) => {
    const own = ++newest;
    try {
      const answer = await fetchJson(api("dags", dagId, "what-if", { job_id: job, ...wish }));
      if (own !== newest) return null;
      said.replaceChildren(`${answer.note ?? answer.text} `, ...sourceBadges(answer.source));
      if (answer.table) rows.replaceChildren(table(answer.table));
      if (answer.front) updateChart(front, answer.front);
      return answer;
    } catch (problem) {
      if (own === newest) said.replaceChildren(`No answer: ${problem.message}`, ...tryAgain(problem));
      return null;
    }
  };

  const moved = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (form.reportValidity()) ask(Object.fromEntries(new FormData(form)));
    }, WAIT_MS);
  };

  const fill = (asked) => form.replaceChildren(...asked.map(field), again);
  form.addEventListener("input", moved);
  form.addEventListener("submit", (event) => event.preventDefault());
  again.addEventListener("click", async () => {
    const answer = await ask({});
    if (answer) fill(answer.asked);
  });

  const first = await ask({});
  if (first) fill(first.asked);
  box.replaceChildren(form, said, rows);
}

function field({ name, label, value, most, step }) {
  const number = element("input", null, { type: "number", name, min: "0", max: most, step: "any", value });
  const made = element("label", null, { class: "what-if-field" }, element("span", label), number);
  if (most > 1) return made;
  // A slider beside the number: both are the same value, the number is what is asked with.
  const slider = element("input", null, { type: "range", min: "0", max: most, step, value, "aria-label": `${label}, slider` });
  number.required = true;
  slider.addEventListener("input", () => { number.value = slider.value; });
  number.addEventListener("input", () => { slider.value = number.value; });
  const together = element("div", null, { class: "what-if-field" }, made, slider);
  made.className = "";
  return together;
}

// The first lines of the page of all jobs: what they spent and saved in a month, the month before, a chart by month.
import { chartBlock, forgetIn } from "./charts.js";
import { answerBlock, api, byId, element, fetchJson, sourceBadges, table, template, tryAgain } from "./ui.js";

let shown = 0; // number of the month that was asked for last: answers about another one are dropped

/** The block of a month, which asks for the present one. */
export function monthBlock() {
  const box = template("month-block").firstElementChild;
  queueMicrotask(() => showMonth()); // once it is on the page
  return box;
}

async function showMonth(month = null) {
  shown += 1;
  const number = shown;
  const box = byId("month");
  const asked = month ? { month } : {};
  try {
    const answer = await fetchJson(api("months", asked));
    if (number !== shown) return;
    fill(answer);
    box.hidden = answer.months.length === 0;
    if (answer.kinds.length) await followSavings(answer.month, number);
  } catch (problem) {
    if (number !== shown) return;
    box.hidden = false;
    byId("month-progress").replaceChildren(`What the jobs spent cannot be shown: ${problem.message}`, ...tryAgain(problem));
  }
}

function fill({ month, title, months, kinds, note, chart }) {
  byId("month-title").textContent = title;
  const choice = byId("month-choice");
  // The answer names the months up to the chosen one: later ones that were on offer stay.
  const names = [...new Set([month, ...months, ...[...choice.options].map((each) => each.value)])].sort().reverse();
  choice.replaceChildren(...names.map((name) => element("option", name, { value: name })));
  choice.value = month;
  choice.onchange = () => showMonth(choice.value);
  byId("month-kinds").replaceChildren(...kinds.map(kindBlock), ...(note ? [element("p", note, { class: "note" })] : []));
  byId("month-saved").hidden = !kinds.some(({ answers }) => answers.some(({ question }) => question === "Saved"));
  byId("month-progress").textContent = "";
  forgetIn(byId("month-chart"));
  byId("month-chart").replaceChildren(...(chart ? [chartBlock(chart, { name: "months" })] : []));
  byId("month-groups").replaceChildren(...kinds.filter(({ groups }) => groups.length).flatMap((each) => [kindHead(each), ...each.groups.map(table)]));
}

/** The kind of a source; where its badge says as much, that alone. */
function kindHead({ kind, source }) {
  const said = source.text === kind || source.text.startsWith("estimate") || source.kind === "no-source";
  return element("h3", null, {}, said ? "" : `${kind[0].toUpperCase()}${kind.slice(1)} `, ...sourceBadges(source));
}

/** A row of the month: what one kind of source spent, saved, and spent in the month before. */
function kindBlock(each) {
  return element("div", null, { "data-kind": each.kind }, kindHead(each), ...each.answers.map(answerBlock));
}

/** Jobs are fitted a second's worth in each request; ask until all are. */
async function followSavings(month, number) {
  for (;;) {
    const saved = await fetchJson(api("months", "saved", { month }));
    if (number !== shown) return;
    for (const block of byId("month-kinds").querySelectorAll("[data-kind]")) {
      const answer = saved.answers[block.dataset.kind];
      const old = [...block.querySelectorAll(".answer")].find((each) => each.ariaLabel === "Saved");
      if (answer && old) old.replaceWith(answerBlock(answer));
    }
    byId("month-progress").textContent = saved.progress;
    if (saved.done) return;
  }
}

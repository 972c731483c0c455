// Draws the blocks of a page, in the order of their declaration (views/pages.py): DRAW has a function for each kind.
import { controls } from "./actions.js";
import { chartBlock, forgetIn, updateChart } from "./charts.js";
import {
  answerBlock, byId, dagId, element, figure, section, sentenceLine, stateBadge, table, tryAgain, unbroken,
} from "./ui.js";
import { jobsTable } from "./overview.js";
import { monthBlock } from "./months.js";
import { runsTable } from "./runs.js";
import { dagsBlock, tasksBlock } from "./tasks.js";

const items = (texts) => texts.map((text) => element("li", text));

// (content, block, answer) => an element; the block has an id, a title and whether it is slow.
const DRAW = {
  alerts: (alerts, { title }) => section(title, element("ul", null, { class: "alerts", "aria-label": title }, ...alerts.map(
    ({ sentence, remedy }) => element("li", null, {}, element("p", sentence), element("p", remedy, { class: "note" }))))),
  answers: (answers, { title }) => element("div", null, { class: "headline", role: title && "group", "aria-label": title }, ...answers.map(answerBlock)),
  attempts: (attempts, { title }) => element("div", null, {},
    element("h3", attempts.length === 1 ? "Its attempt" : title),
    element("ol", null, { class: "attempts" }, ...attempts.map((attempt) => attemptItem(attempt)))),
  controls: (_, block, { job_id: job }) => controls(dagId, job),
  dags: dagsBlock,
  jobs: jobsTable,
  list: (texts, { title }) => element("ul", null, { class: "note texts", "aria-label": title }, ...items(texts)),
  month: monthBlock,
  progress: ({ text, epochs, max_epochs: most }) => element("p", text, { class: "progress", role: "status" },
    ...(most === null ? [] : [element("progress", null, { max: most, value: epochs ?? 0, "aria-label": "Epochs, of at most" })])),
  remarks: (texts) => element("div", null, {}, ...texts.map((text) => element("p", text, { class: "note remark" }))),
  runs: runsTable,
  sentence: sentenceLine,
  table: (rows) => table(rows),
  tasks: tasksBlock,
  text: (text, { title }) => element("p", title ? `${title}: ${text}` : text, { class: "note", role: title ? null : "status" }),
  verdict: ({ word, text }) => {  // what it cost comes first; then the sentence says what was saved or lost
    const lead = text.startsWith("It cost ") ? [] : [element("strong", `${word}: `)];
    return element("p", null, { class: "sentence verdict" }, ...lead, unbroken(text));
  },
};
const isChart = ({ draw }) => draw === "chart" || draw === "openChart";
const isEmpty = (content) => content === null || content?.length === 0;
const boxes = (fold) => (fold ? document.querySelector(`details[data-fold="${CSS.escape(fold)}"]`) : byId("content"));

/** The element with the name of its block, unless it has its own. */
function named(block, created) {
  created.id ||= block.id;
  return created;
}

function drawn(block, answer) {
  const content = answer[block.id];
  if (isEmpty(content)) return element("div", null, { hidden: "hidden" });
  return DRAW[block.draw](content, block, answer);
}

/** The blocks of a part of a page that are no charts; nothing for those that are empty. */
export function partBlocks(blocks, part) {
  return blocks.filter((block) => !isChart(block) && !isEmpty(part[block.id])).map((block) => drawn(block, part));
}

/**
 * Draw the blocks of a page, those of one question in a closed part. A slow one that the answer does not hold yet gets
 * its place; fillSlow() draws it.
 */
export function drawPage(content, answer) {
  const loading = () => element("p", "Loading …", { class: "note" });
  let waits = false;
  content.replaceChildren();
  for (const block of answer.blocks) {
    if (block.fold && !boxes(block.fold)) {
      content.append(element("details", null, { class: "part", "data-fold": block.fold }, element("summary", null, {}, element("h2", block.fold))));
    }
    const into = boxes(block.fold);
    if (isChart(block)) {
      if (into.querySelector(":scope > .charts")) continue;
      const box = element("section", null, { class: "charts", "aria-label": "Charts" });
      if (!block.fold) into.append(element("h2", "Charts", { class: "unseen" }));
      into.append(box);
      if (block.slow) box.append(loading());
      else showCharts(box, answer.blocks, answer);
    } else if (!block.slow) into.append(named(block, drawn(block, answer)));
    else {
      into.append(named(block, element("div", null, waits ? { hidden: "hidden" } : { "aria-busy": "true" })));
      if (!waits) byId(block.id).append(loading());
      waits = true;
    }
  }
}

/**
 * Draw the slow blocks of a page once their answer is there; where it fails, the place of the charts says why. A part
 * that has nothing to show goes.
 */
export async function fillSlow(blocks, waiting) {
  const slow = blocks.filter((each) => each.slow && !isChart(each));
  const places = [...document.querySelectorAll("#content .charts")];
  let done = true;
  try {
    const answer = await waiting;
    for (const block of slow) byId(block.id).replaceWith(named(block, drawn(block, answer)));
    for (const box of places) {
      const fold = box.parentElement.dataset.fold ?? "";
      showCharts(box, blocks.filter((each) => each.fold === fold), answer);
    }
  } catch (problem) {
    for (const { id } of slow) byId(id).remove();
    for (const box of places) noCharts(box, problem);
    done = false;
  }
  for (const part of document.querySelectorAll("details[data-fold]")) {
    part.hidden = [...part.children].slice(1).every((child) => child.hidden || (child.matches(".charts") && !child.hasChildNodes()));
  }
  return done;
}

/** Show the charts of an answer in `box`; those that it shows already get new data, and open tables stay open. */
export function showCharts(box, blocks, answer) {
  const found = blocks.filter(isChart).flatMap(({ id, draw }) =>
    [answer[id] ?? []].flat().filter(({ option, note }) => option || note).map((chart) => ({ chart, name: id, open: draw === "openChart" })));
  const shown = [...box.querySelectorAll("figure")];
  if (found.length && shown.length === found.length && found.every(({ chart }, i) => chart.title === shown[i].dataset.title)) {
    found.forEach(({ chart }, i) => updateChart(shown[i], chart));
    return;
  }
  forgetIn(box);
  box.replaceChildren(...found.map(({ chart, ...how }) => chartBlock(chart, how)));
}

export function noCharts(box, problem) {
  box.replaceChildren(element("p", `The charts cannot be shown: ${problem.message}`, { class: "note" }, ...tryAgain(problem)));
}

function attemptItem(attempt) {
  const head = element("p", null, { class: "attempt-head" });
  head.append(element("strong", attempt.batch_size === null ? "Measured as it is" : `Attempt ${attempt.number}: batch size ${attempt.batch_size}`), " ");
  head.append(stateBadge(attempt.waits ? "waits" : attempt.state, attempt.state_text));
  head.append(element("span", ` ${attempt.phase}`, { class: "note" }));
  const figures = element("dl");
  const named = [
    ...(attempt.source.kind === "no-source" ? [] : [["Energy", attempt.energy]]),
    ["Time", attempt.time],
    ...(attempt.excess ? [["Extra by profiling", attempt.excess]] : []),
    ...(attempt.batch_size === null ? [] : [["Epochs", attempt.epochs]]),
    ["Power limit", attempt.limit],
    ...(attempt.busy ? [["GPU busy", attempt.busy]] : []),
  ];
  for (const [label, value] of named) figures.append(element("div", null, {}, element("dt", label), figure("dd", value)));
  const where = attempt.device ? `${attempt.where}, on ${attempt.device}` : attempt.where;
  const sentence = (name, text) => element("p", null, {}, element("span", `${name}: `, { class: "note" }), text);
  return element("li", null, {},
    head,
    sentence("Why it was chosen", attempt.why),
    sentence(attempt.state === "running" && !attempt.waits ? "Now" : "Why it ended", attempt.ended),
    figures,
    element("p", where, { class: "note" }),
  );
}

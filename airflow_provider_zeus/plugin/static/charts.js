// Charts with heading, note and table. They follow Airflow's theme and the size of their box.
import { element, replace, table } from "./ui.js";

const charts = new Map(); // box -> [option, chart drawn]
const libraryLoaded = document.readyState === "complete" || new Promise((loaded) => {
  addEventListener("load", loaded, { once: true });
});
const MISSING =
  "The chart library is not installed; “pip install -e .” or “make demo” in the provider's checkout installs it. " +
  "The table holds all figures.";

/** Draw an ECharts option in `box`. Returns whether it could be drawn. */
export async function draw(box, option, text) {
  await libraryLoaded;
  box.hidden = !option || !window.echarts;
  if (box.hidden) {
    forget(box);
    return !option;
  }
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", text);
  const old = charts.get(box)?.[1];
  charts.set(box, [option, old]);
  if (old) set(old, option);
  else sizes.observe(box); // it is drawn as soon as it has a size: a closed part has none
  return true;
}

/** A figure element of a models.Chart, with heading, note and table. */
export function chartBlock(chart, { open = false, name = "" } = {}) {
  const block = element("figure", null, { class: `chart-block ${name}`, "data-title": chart.title });
  const more = element("details", null, open ? { open: "open" } : {}, element("summary", "As a table", {}, element("span", null, { class: "unseen" })), element("div"));
  block.append(element("h3"), element("div", null, { class: "chart" }), element("figcaption", null, { class: "note" }), more);
  updateChart(block, chart);
  return block;
}

/** New data for a block; an open table stays open. */
export function updateChart(block, { title, option, text, note, table: rows }) {
  block.querySelector("h3").textContent = title;
  const remark = block.querySelector("figcaption");
  const more = block.querySelector("details");
  remark.textContent = note;
  more.querySelector("summary > span").textContent = `: ${title}`;
  more.hidden = !rows;
  if (rows) replace(more.lastChild, table(rows));
  draw(block.querySelector(".chart"), option, text).then((drawn) => {
    if (!drawn) remark.textContent = `${MISSING} ${note}`;
  });
}

/** Free a chart, before its box is removed. */
export function forget(box) {
  charts.get(box)?.[1]?.dispose();
  charts.delete(box);
  sizes.unobserve(box);
}

/** Free all charts below an element. */
export function forgetIn(parent) {
  for (const box of [...charts.keys()]) if (parent.contains(box)) forget(box);
}

const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const [option, chart] = charts.get(target) ?? [];
    if (chart) chart.resize();
    else if (option && target.clientWidth) redraw(target);
  }
});

function redraw(box) {
  const [option, old] = charts.get(box);
  old?.dispose();
  const chart = window.echarts.init(box, chartTheme());
  charts.set(box, [option, chart]);
  set(chart, option);
}

function set(chart, option) {
  const tip = (points) => [points].flat().find((point) => point.data?.tip)?.data.tip ?? "";
  chart.setOption({ ...option, tooltip: { ...option.tooltip, formatter: tip } }, { notMerge: true });
}

function chartTheme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const text = { color: colour("--text") };
  const axis = {
    axisLine: { lineStyle: { color: colour("--quiet") } },
    axisTick: { lineStyle: { color: colour("--quiet") } },
    axisLabel: text,
    nameTextStyle: text,
    splitLine: { lineStyle: { color: colour("--line") } },
  };
  return {
    backgroundColor: "transparent",
    textStyle: { fontFamily: style.fontFamily },
    categoryAxis: { ...axis, splitLine: { show: false } },
    valueAxis: axis,
    logAxis: axis,
    timeAxis: axis,
    legend: { textStyle: text, pageTextStyle: text, pageIconColor: colour("--text"), inactiveColor: colour("--quiet") },
    scatter: { label: { color: colour("--text"), textBorderColor: colour("--halo"), textBorderWidth: 3 } },
    line: { label: { color: colour("--text") }, endLabel: { color: colour("--text") } },
    markLine: { label: { color: colour("--text") } },
    markArea: { label: { color: colour("--text") } },
    dataZoom: { textStyle: text, borderColor: colour("--line") },
    tooltip: { backgroundColor: colour("--tip"), borderColor: colour("--line"), textStyle: text },
  };
}

// ---------------------------------------------------------------- theme: Airflow's, also after a change

function airflowTheme() {
  try {
    const classes = parent.document.documentElement.classList;
    if (parent !== window && classes.contains("dark")) return "dark";
    if (parent !== window && classes.contains("light")) return "light";
  } catch {
    // the outer page has another origin
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function followTheme() {
  const apply = () => {
    const theme = airflowTheme();
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    for (const [box, [, chart]] of charts) if (chart) redraw(box);
  };
  apply();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  try {
    new MutationObserver(apply).observe(parent.document.documentElement, { attributeFilter: ["class"] });
  } catch {
    // another origin: the system's preference counts
  }
}

// Sorts a table by the buttons in its column heads: by a cell's number in `data-sort`, else by its text. Unknown values
// come last in both directions.

import { element } from "./ui.js";

/** An empty table with the id `id`, its body with that of `body`. A "#" before a name: numbers; a "-": not sortable. */
export function sortableTable(id, body, columns) {
  const heads = columns.map((name) => {
    const kind = { scope: "col", class: name.startsWith("#") ? "number" : null };
    if (name.startsWith("-")) return element("th", name.slice(1), kind);
    const text = name.replace("#", "");
    return element("th", null, { ...kind, "aria-sort": "none" }, element("button", text, { type: "button", class: "sort" }));
  });
  const table = element("table", null, { id }, element("thead", null, {}, element("tr", null, {}, ...heads)), element("tbody", null, { id: body }));
  heads.forEach((head, column) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const keyed = [...body.rows].map((row) => [key(row.cells[column]), row]);
      keyed.sort(([a], [b]) => compare(a, b, down ? -1 : 1));
      body.replaceChildren(...keyed.map(([, row]) => row));
    });
  });
  return table;
}

function key(cell) {
  const sort = cell.dataset.sort;
  if (sort === undefined) return cell.textContent === "–" ? null : cell.textContent;
  return sort === "" ? null : Number(sort);
}

function compare(a, b, sign) {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  if (typeof a === "number") return sign * (a - b);
  return sign * a.localeCompare(b, undefined, { numeric: true });
}

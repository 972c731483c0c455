// Sorts a table by the buttons in its column heads: by a cell's number in `data-sort`, else by its text. Unknown values
// come last in both directions.

export function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    button?.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const keyed = [...body.rows].map((row) => [key(row.cells[column]), row]);
      keyed.sort(([a], [b]) => compare(a, b, down ? -1 : 1));
      body.replaceChildren(...keyed.map(([, row]) => row));
    });
  });
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

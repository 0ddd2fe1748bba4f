"use strict";
// The page is whole without this: it only sorts tables and opens the sources for the printer.
for (const head of document.querySelectorAll("th[data-sort]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => sortBy(head));
}

function sortBy(head) {
  const heads = [...head.parentElement.children];
  const column = heads.indexOf(head);
  const body = head.closest("table").tBodies[0];
  const numeric = head.classList.contains("num");
  const before = head.getAttribute("aria-sort");
  const descending = before ? before === "ascending" : numeric; // numbers: greatest first
  for (const other of heads) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[column]) }));
  rows.sort((a, b) => compare(a.key, b.key, descending));
  body.append(...rows.map((entry) => entry.row));
}

function keyOf(cell) {
  if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
  const text = cell.textContent.trim();
  return text === "\u2013" ? null : text;
}

function compare(a, b, descending) {
  if (a === null || b === null) return (a === null) - (b === null); // what was not measured stays last
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  return descending ? -order : order;
}

let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const part of opened) part.open = true;
});
addEventListener("afterprint", () => {
  for (const part of opened) part.open = false;
});

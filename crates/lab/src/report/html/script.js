"use strict";
// Tables: a button in each title sorts by its column.
const order = new Intl.Collator("en", { numeric: true });
const value = (row, column) => row.cells[column].textContent.trim();
const number = (text) => /^[-+]?[\d,]*\.?\d/.test(text) ? parseFloat(text.replaceAll(",", "")) : NaN;
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  if (table.tBodies[0].rows.length < 2) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      const numbers = column > 0 && rows.some((row) => !isNaN(number(value(row, column))));
      const compare = (a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        if (!numbers) return order.compare(x, y);
        const [m, n] = [number(x), number(y)];
        return isNaN(m) ? (isNaN(n) ? 0 : -1) : isNaN(n) ? 1 : m - n;
      };
      rows.sort((a, b) => (down ? -1 : 1) * compare(a, b));
      table.tBodies[0].append(...rows);
    });
  });
}
// A link to something folded unfolds it.
const unfold = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();

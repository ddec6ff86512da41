"use strict";
// Sorting and filtering of the table of outcomes. Without it the page is the same, with every row in one plain table.
(() => {
  const table = document.getElementById("outcome-table");
  if (!table) return;
  const body = table.tBodies[0], rows = Array.from(body.rows), heads = Array.from(table.tHead.rows[0].cells);
  const filters = document.getElementById("outcome-filters"), said = document.getElementById("outcome-count");
  const key = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const compare = (one, other, isNumber, sign) => {
    if (one === "" || other === "") return (one === "") - (other === ""); // what is not there stays last
    return sign * (isNumber ? Number(one) - Number(other) : one.localeCompare(other));
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    while (head.firstChild) button.append(head.firstChild);
    head.append(button);
    button.addEventListener("click", () => {
      const isNumber = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const next = before === null ? (isNumber ? "descending" : "ascending") : before === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      rows.sort((one, other) => compare(key(one, column), key(other, column), isNumber, sign));
      body.append(...rows);
    });
  });
  const apply = () => {
    const text = filters.elements.text.value.trim().toLowerCase();
    const landmark = filters.elements.landmark.value, horizon = filters.elements.horizon.value;
    let shown = 0;
    rows.forEach((row) => {
      const fits = (!text || row.cells[0].textContent.toLowerCase().includes(text)) &&
        (!landmark || row.dataset.landmark === landmark) && (!horizon || row.dataset.horizon === horizon);
      row.hidden = !fits;
      shown += fits;
    });
    said.textContent = `${shown} of ${rows.length} rows`;
  };
  filters.hidden = false;
  filters.addEventListener("input", apply);
  filters.addEventListener("submit", (event) => event.preventDefault());
  apply();
})();

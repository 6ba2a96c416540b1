// A click on a column's head sorts by it, a second click turns the order round; what is missing stays last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.value);
  };
  const compare = (one, other) => (typeof one === "string" ? one.localeCompare(other) : one - other);
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const first = head.querySelector("button").dataset.first;
    const turned = { ascending: "descending", descending: "ascending" };
    const order = head.ariaSort ? turned[head.ariaSort] : first;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => ({ row, value: value(row, column) }));
    rows.sort((a, b) => Number.isNaN(a.value) - Number.isNaN(b.value) || sign * compare(a.value, b.value) || 0);
    body.append(...rows.map(({ row }) => row));
  }));
}

(() => {
  const table = document.getElementById("cells");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const number = (text) => (text === "" || text === "-" ? NaN : Number(text));
  const order = (column, numeric, up) => (a, b) => {
    const x = a.cells[column].textContent, y = b.cells[column].textContent;
    if (!numeric) return up * x.localeCompare(y, "en", { numeric: true });
    const m = number(x), n = number(y);
    return Number.isNaN(m) ? (Number.isNaN(n) ? 0 : 1) : Number.isNaN(n) ? -1 : up * (m - n);
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up > 0 ? "ascending" : "descending");
      body.append(...rows.sort(order(column, head.classList.contains("n"), up)));
    });
    head.replaceChildren(button);
  });
  const filter = document.createElement("input");
  filter.type = "search";
  filter.placeholder = "Filter rows, e.g. ring graph";
  filter.setAttribute("aria-label", "Filter rows by words");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  document.getElementById("tools").prepend(filter);
})();

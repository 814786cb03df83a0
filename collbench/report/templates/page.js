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
(() => {
  const form = document.getElementById("calculator");
  const source = document.getElementById("curves");
  if (!form || !source) return;
  const curves = JSON.parse(source.textContent);
  const body = document.getElementById("steps").tBodies[0];
  const note = document.getElementById("steps-note");
  const first = note.textContent;
  const names = ["count", "bytes", "tokens", "batch", "other", "accepted"];
  const inputs = names.map((name) => document.getElementById("w-" + name));
  const digits = (us) => us.toFixed(Math.min(2, Math.max(0, 2 - Math.floor(Math.log10(us)))));
  const at = (points, size) => {
    const exact = points.find(([bytes]) => bytes === size);
    if (exact) return exact[1];
    const below = points.filter(([bytes]) => bytes < size).pop();
    const above = points.find(([bytes]) => bytes > size);
    if (!below || !above) return NaN;
    return below[1] + (above[1] - below[1]) * (size - below[0]) / (above[0] - below[0]);
  };
  const heads = [...document.getElementById("steps").tHead.rows[0].cells].map((head) => head.textContent);
  const cell = (row, kind, text) => {
    const one = document.createElement(kind);
    one.textContent = text;
    if (kind === "th") one.scope = "row"; else [one.className, one.dataset.column] = ["n", heads[row.cells.length]];
    row.append(one);
  };
  const show = () => {
    const values = inputs.map((input) => (input.validity.valid && input.value !== "" ? Number(input.value) : NaN));
    if (values.some(Number.isNaN)) { note.textContent = "Each field takes a number of its range."; return; }
    const [count, bytes, tokens, batch, other, accepted] = values;
    const size = bytes * tokens * batch;
    const known = Object.entries(curves).map(([name, points]) => [name, at(points, size)]);
    const lines = known.filter(([, us]) => us > 0).sort((a, b) => a[1] - b[1]);
    body.replaceChildren(...lines.map(([name, us]) => {
      const row = document.createElement("tr");
      const comm = count * us / 1000, step = comm + other;
      cell(row, "th", name);
      for (const text of [digits(us), comm.toFixed(2), step.toFixed(2), (1000 * accepted * batch / step).toFixed(1)]) cell(row, "td", text);
      return row;
    }));
    const missing = known.length - lines.length;
    note.textContent = `Messages of ${size} bytes.` + (missing ? ` ${missing} without a time: no size of the curve on both sides.` : "") +
      " Between the sizes of a curve time is taken as linear in the bytes; intervals are left out.";
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", show);
  form.addEventListener("reset", () => { note.textContent = first; });
  form.hidden = false;
})();

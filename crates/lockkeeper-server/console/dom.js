// Builds elements from data. All data of the cell is inserted as text, because clients choose names and owners.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** An element of the page. */
export const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);

/** An element of a drawing. */
export const s = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

// The signature of an item; a changed signature is a changed item. Times are left out: they are updated separately.
const signatureWithoutTimes = (item) => JSON.stringify(item, (name, value) => (name.endsWith("_ms") ? undefined : value));

/**
 * Renders items into a container. Replaces only those that changed, so that focus and selection are kept.
 * Pass `signatureOf` if a change of a time matters.
 */
export function list(container, items, key, render, signatureOf = signatureWithoutTimes) {
  const old = container.shown ?? new Map();
  const shown = new Map();
  const focused = container.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  for (const item of items) {
    const known = old.get(key(item));
    const signature = signatureOf(item);
    if (known && known.signature === signature) {
      shown.set(key(item), known);
    } else {
      const element = render(item);
      // Rows that change every second are not highlighted.
      if (old.size > 0 && signatureOf === signatureWithoutTimes) element.classList.add("fresh");
      shown.set(key(item), { signature, element });
    }
  }
  const elements = [...shown.values()].map((entry) => entry.element);
  const same = elements.length === container.children.length && elements.every((e, at) => container.children[at] === e);
  if (!same) {
    container.replaceChildren(...elements);
    if (focused) container.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }
  container.shown = shown;
}

/** Sets a text only if it differs: a live region announces every change. */
export function setText(element, text, kind = "") {
  if (element.textContent !== text) element.textContent = text;
  if (element.className !== kind) element.className = kind;
}

// On a phone, rows are blocks. Some browsers then hide the table from screen readers, hence the explicit roles.

/** A table with a caption and a body to be filled with `list`. */
export function table(caption, heads, id) {
  const body = h("tbody", { role: "rowgroup" });
  const title = h("caption", {}, caption);
  const head = heads.map((name) => h("th", { scope: "col", role: "columnheader", class: name.startsWith("#") ? "number" : undefined }, name.replace("#", "")));
  const whole = h("div", { class: "scroll" }, h("table", { id, role: "table", class: "stack" }, title,
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)), body));
  return { whole, body, title };
}

/** A row of a table. */
export const tr = (attributes, ...cells) => h("tr", { role: "row", ...attributes }, cells);
/** The header cell of a row. */
export const rowHead = (...children) => h("th", { scope: "row", role: "rowheader" }, children);
/** A cell of a table; its label is shown where the column header is not. */
export const td = (label, ...children) => h("td", { role: "cell", "data-label": label }, children);
/** A cell with a number. */
export const numberCell = (label, ...children) => h("td", { role: "cell", "data-label": label, class: "number" }, children);

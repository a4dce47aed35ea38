// The wait graph: blocking sessions on the left, waiting sessions to their right.

import { h, list, numberCell, rowHead, s, table, td, tr } from "./dom.js";
import { count, lockLink, owner, ownerName, shorten, since } from "./format.js";

/** Maximum number of points in a drawing. */
const DRAWN = 60;
const WIDTH = 220;
const HEIGHT = 46;
const GAP_X = 70;
const GAP_Y = 16;
/** The shortest chain that is highlighted. */
const LONG = 3;

/** Chooses the points to draw: cycles and the longest chain first. */
function pointsToDraw(data) {
  const order = data.points.map((point, at) => at);
  const weight = (at) => (data.points[at].ring > 0 ? 0 : data.longest_chain.includes(at) ? 1 : 2);
  return order.sort((one, other) => weight(one) - weight(other) || one - other).slice(0, DRAWN);
}

/** The depth of each point: the length of the chain of sessions that block it; a cycle counts once. */
function levels(drawn, arrows) {
  const level = new Map(drawn.map((at) => [at, 0]));
  for (let round = 0; round < Math.min(drawn.length, 40); round += 1) {
    let changed = false;
    for (const { from, to } of arrows) {
      if (level.get(from) <= level.get(to) && level.get(to) < 40) {
        level.set(from, level.get(to) + 1);
        changed = true;
      }
    }
    if (!changed) break;
  }
  return level;
}

function drawing(data) {
  const drawn = pointsToDraw(data);
  const within = new Set(drawn);
  const ring = (at) => data.points[at].ring;
  const inCycle = (arrow) => ring(arrow.from) > 0 && ring(arrow.from) === ring(arrow.to);
  const arrows = data.arrows.filter((arrow) => within.has(arrow.from) && within.has(arrow.to) && arrow.from !== arrow.to);
  const level = levels(drawn, arrows.filter((arrow) => !inCycle(arrow)));
  const chain = data.longest_chain.length >= LONG ? data.longest_chain : [];
  const inChain = (arrow) => chain.indexOf(arrow.from) >= 0 && chain.indexOf(arrow.to) === chain.indexOf(arrow.from) + 1;
  const columns = new Map();
  const position = new Map();
  for (const at of drawn) {
    // Members of a cycle alternate between two columns, so that its arrows are visible.
    const column = level.get(at) + (ring(at) > 0 ? drawn.filter((other) => ring(other) === ring(at)).indexOf(at) % 2 : 0);
    const row = columns.get(column) ?? 0;
    columns.set(column, row + 1);
    position.set(at, { x: 10 + column * (WIDTH + GAP_X), y: 10 + row * (HEIGHT + GAP_Y) });
  }
  const width = 20 + (Math.max(0, ...columns.keys()) + 1) * (WIDTH + GAP_X) - GAP_X;
  const height = 20 + Math.max(1, ...columns.values()) * (HEIGHT + GAP_Y);
  const label = `${data.points.length} sessions, ${data.arrows.length} waits, ${data.rings} cycles, longest chain ${data.longest_chain.length}`;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Wait graph: " + label });
  // A small graph does not fill the page; a large one scrolls sideways instead of shrinking.
  svg.style.maxWidth = width + "px";
  svg.style.minWidth = width * 0.85 + "px";
  for (const arrow of arrows) {
    const kind = inCycle(arrow) ? " ring" : inChain(arrow) ? " chain" : "";
    const from = position.get(arrow.from);
    const to = position.get(arrow.to);
    const forward = from.x > to.x;
    const start = { x: forward ? from.x : from.x + WIDTH, y: from.y + HEIGHT / 2 + (forward ? -6 : 6) };
    const end = { x: forward ? to.x + WIDTH : to.x, y: to.y + HEIGHT / 2 + (forward ? -6 : 6) };
    const bend = forward ? -GAP_X / 2 : GAP_X / 2;
    const path = `M${start.x} ${start.y} C${start.x + bend} ${start.y} ${end.x - bend} ${end.y} ${end.x} ${end.y}`;
    const tip = forward ? 8 : -8;
    const title = `${ownerName(data.points[arrow.from])} waits for ${ownerName(data.points[arrow.to])}: ${arrow.lock}`;
    svg.append(
      s("path", { class: "arrow" + kind, d: path }, s("title", {}, title)),
      s("path", { class: "tip" + kind, d: `M${end.x} ${end.y} l${tip} -5 v10 z` }));
  }
  const stateOf = (at) => {
    const waits = arrows.find((arrow) => arrow.from === at);
    return (ring(at) > 0 ? "in a cycle, " : "") + (waits ? `waits for ${waits.lock}` : `holds ${data.points[at].holds}`);
  };
  for (const at of drawn) {
    const point = data.points[at];
    const { x, y } = position.get(at);
    const kind = point.ring > 0 ? " ring" : chain.includes(at) ? " chain" : "";
    const name = ownerName(point);
    svg.append(s("g", { class: "point" + kind },
      s("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6 }), s("title", {}, `${name}, session ${point.session}, holds ${point.holds}`),
      s("text", { x: x + 10, y: y + 19 }, shorten(name, 28)),
      s("text", { x: x + 10, y: y + 36, class: "soft" }, shorten(stateOf(at), 32))));
  }
  return svg;
}

function summary(data) {
  const found = [];
  if (data.rings > 0) {
    found.push(h("p", { class: "notice bad" }, `${data.rings === 1 ? "A cycle" : data.rings + " cycles"} of sessions waiting for each other. If each session is one line of work, this is a deadlock: force-release one of its locks, or let a wait time out.`));
  }
  if (data.longest_chain.length >= LONG) {
    found.push(h("p", { class: "notice" }, "Longest chain: ", data.longest_chain.map((at) => ownerName(data.points[at])).join(" → ")));
  }
  const drawn = Math.min(DRAWN, data.points.length);
  const all = data.points.length === 0 ? "No waiters." : data.waiting === 1 ? "1 request is waiting." : `${count(data.waiting)} requests are waiting.`;
  const left = drawn < data.points.length ? ` The drawing shows ${drawn} of ${data.points.length} sessions.` : "";
  found.push(h("p", { class: "soft" }, all, data.sampled ? " The oldest are shown." : "", left));
  return found;
}

export function graph() {
  const notes = h("div");
  const picture = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Drawing of the wait graph" });
  const rows = table("Waiting sessions", ["Waiter", "Lock", "Blocked by", "#Waiting for"]);
  const root = h("section", {}, h("h2", {}, "Wait graph"), notes, picture, rows.whole);
  let drawn = "";
  return {
    root,
    title: () => "Wait graph",
    query: () => ({ view: "graph" }),
    update(data, node) {
      const signature = JSON.stringify(data, (name, value) => (name === "waited_ms" ? undefined : value));
      if (signature !== drawn) {
        notes.replaceChildren(...summary(data));
        picture.replaceChildren(data.points.length > 0 ? drawing(data) : "");
        drawn = signature;
      }
      const waits = data.arrows.slice(0, 200).map((arrow) => ({ ...arrow, waits: data.points[arrow.from], holds: data.points[arrow.to] }));
      list(rows.body, waits, (one) => one.waits.session + one.holds.session + one.lock, (one) => tr({},
        rowHead(owner(one.waits)), td("Lock", lockLink(one.lock)), td("Blocked by", owner(one.holds)),
        numberCell("Waiting for", since(node.as_of_ms - one.waited_ms))));
    },
  };
}

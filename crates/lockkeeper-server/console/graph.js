// The wait graph: blocking sessions on the left, waiting ones to their right.

import { figure, h, list, rowHead, s, table, td, tr } from "./dom.js";
import { brief, count, lockLink, owner, since, who } from "./format.js";

/** The most points of a drawing. */
const DRAWN = 60;
const WIDTH = 220;
const HEIGHT = 46;
const GAP_X = 70;
const GAP_Y = 16;
/** The shortest chain that is highlighted. */
const LONG = 3;

/** Chooses the points to draw: cycles and the longest chain first. */
function chosen(data) {
  const order = data.points.map((point, at) => at);
  const weight = (at) => (data.points[at].ring > 0 ? 0 : data.longest_chain.includes(at) ? 1 : 2);
  return order.sort((one, other) => weight(one) - weight(other) || one - other).slice(0, DRAWN);
}

/** The depth of each point: how many sessions block it, one behind the other; a cycle counts once. */
function levels(places, arrows) {
  const level = new Map(places.map((at) => [at, 0]));
  for (let round = 0; round < Math.min(places.length, 40); round += 1) {
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
  const places = chosen(data);
  const within = new Set(places);
  const ring = (at) => data.points[at].ring;
  const inRing = (arrow) => ring(arrow.from) > 0 && ring(arrow.from) === ring(arrow.to);
  const arrows = data.arrows.filter((arrow) => within.has(arrow.from) && within.has(arrow.to) && arrow.from !== arrow.to);
  const level = levels(places, arrows.filter((arrow) => !inRing(arrow)));
  const chain = data.longest_chain.length >= LONG ? data.longest_chain : [];
  const inChain = (arrow) => chain.indexOf(arrow.from) >= 0 && chain.indexOf(arrow.to) === chain.indexOf(arrow.from) + 1;
  const columns = new Map();
  const spot = new Map();
  for (const at of places) {
    // Members of a cycle are drawn beside each other, so that its arrows are visible.
    const column = level.get(at) + (ring(at) > 0 ? places.filter((other) => ring(other) === ring(at)).indexOf(at) % 2 : 0);
    const row = columns.get(column) ?? 0;
    columns.set(column, row + 1);
    spot.set(at, { x: 10 + column * (WIDTH + GAP_X), y: 10 + row * (HEIGHT + GAP_Y) });
  }
  const width = 20 + (Math.max(0, ...columns.keys()) + 1) * (WIDTH + GAP_X) - GAP_X;
  const height = 20 + Math.max(1, ...columns.values()) * (HEIGHT + GAP_Y);
  const words = `${data.points.length} sessions, ${data.arrows.length} waits, ${data.rings} cycles, longest chain ${data.longest_chain.length}`;
  const made = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Wait graph: " + words });
  // A small graph does not fill the page; a large one scrolls sideways instead of shrinking.
  made.style.maxWidth = width + "px";
  made.style.minWidth = width * 0.85 + "px";
  for (const arrow of arrows) {
    const kind = inRing(arrow) ? " ring" : inChain(arrow) ? " chain" : "";
    const from = spot.get(arrow.from);
    const to = spot.get(arrow.to);
    const forward = from.x > to.x;
    const start = { x: forward ? from.x : from.x + WIDTH, y: from.y + HEIGHT / 2 + (forward ? -6 : 6) };
    const end = { x: forward ? to.x + WIDTH : to.x, y: to.y + HEIGHT / 2 + (forward ? -6 : 6) };
    const bend = forward ? -GAP_X / 2 : GAP_X / 2;
    const path = `M${start.x} ${start.y} C${start.x + bend} ${start.y} ${end.x - bend} ${end.y} ${end.x} ${end.y}`;
    const tip = forward ? 8 : -8;
    const title = `${who(data.points[arrow.from])} waits for ${who(data.points[arrow.to])}: ${arrow.lock}`;
    made.append(
      s("path", { class: "arrow" + kind, d: path }, s("title", {}, title)),
      s("path", { class: "tip" + kind, d: `M${end.x} ${end.y} l${tip} -5 v10 z` }));
  }
  const stands = (at) => {
    const waits = arrows.find((arrow) => arrow.from === at);
    return (ring(at) > 0 ? "in a cycle, " : "") + (waits ? `waits for ${waits.lock}` : `holds ${data.points[at].holds}`);
  };
  for (const at of places) {
    const point = data.points[at];
    const { x, y } = spot.get(at);
    const kind = point.ring > 0 ? " ring" : chain.includes(at) ? " chain" : "";
    const name = who(point);
    made.append(s("g", { class: "point" + kind },
      s("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6 }), s("title", {}, `${name}, session ${point.session}, holds ${point.holds}`),
      s("text", { x: x + 10, y: y + 19 }, brief(name, 28)),
      s("text", { x: x + 10, y: y + 36, class: "soft" }, brief(stands(at), 32))));
  }
  return made;
}

function sentences(data) {
  const found = [];
  if (data.rings > 0) {
    found.push(h("p", { class: "notice bad" }, `${data.rings === 1 ? "A cycle" : data.rings + " cycles"} of sessions waiting for each other. If each session is one line of work, this is a deadlock: force-release one of its locks, or let a wait time out.`));
  }
  if (data.longest_chain.length >= LONG) {
    found.push(h("p", { class: "notice" }, "Longest chain: ", data.longest_chain.map((at) => who(data.points[at])).join(" → ")));
  }
  const drawn = Math.min(DRAWN, data.points.length);
  const all = data.points.length === 0 ? "No waiters." : data.waiting === 1 ? "1 request is waiting." : `${count(data.waiting)} requests are waiting.`;
  const left = drawn < data.points.length ? ` The drawing shows ${drawn} of ${data.points.length} sessions.` : "";
  found.push(h("p", { class: "soft" }, all, data.sampled ? " The oldest are shown." : "", left));
  return found;
}

export function graph() {
  const words = h("div");
  const picture = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Drawing of the wait graph" });
  const rows = table("Waiting sessions", ["Waiter", "Lock", "Blocked by", "#Waiting for"]);
  const root = h("section", {}, h("h2", {}, "Wait graph"), words, picture, rows.whole);
  let drawn = "";
  return {
    root,
    title: () => "Wait graph",
    wants: () => ({ view: "graph" }),
    update(data, around) {
      const sign = JSON.stringify(data, (name, value) => (name === "waited_ms" ? undefined : value));
      if (sign !== drawn) {
        words.replaceChildren(...sentences(data));
        picture.replaceChildren(data.points.length > 0 ? drawing(data) : "");
        drawn = sign;
      }
      const waits = data.arrows.slice(0, 200).map((arrow) => ({ ...arrow, waits: data.points[arrow.from], holds: data.points[arrow.to] }));
      list(rows.body, waits, (one) => one.waits.session + one.holds.session + one.lock, (one) => tr({},
        rowHead(owner(one.waits)), td("Lock", lockLink(one.lock)), td("Blocked by", owner(one.holds)),
        figure("Waiting for", since(around.as_of_ms - one.waited_ms))));
    },
  };
}

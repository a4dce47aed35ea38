// Small drawings: lines over the last hour, and the timeline of a lock.

import { s } from "./dom.js";
import { duration, happened, who } from "./format.js";

/** Figures of the last sixty minutes as a line; `words` tells the same to those who do not see it. */
export function sparkline(figures, kind, words) {
  const most = Math.max(1, ...figures);
  const place = (figure, at) => `${((at / (figures.length - 1)) * 300).toFixed(1)},${(46 - (figure / most) * 42).toFixed(1)}`;
  return s("svg", { viewBox: "0 0 300 50", role: "img", "aria-label": words, preserveAspectRatio: "none", height: 50 },
    s("line", { class: "axis", x1: 0, y1: 47, x2: 300, y2: 47 }),
    s("polyline", { class: kind, points: figures.map(place).join(" ") }));
}

/** Grants with their ends, out of events that come newest first. */
export function grants(events, asOf) {
  const open = new Map();
  const found = [];
  for (const event of [...events].reverse()) {
    const key = event.token + " " + event.session;
    if (event.what === "granted") {
      const grant = { from: event.at_ms, to: undefined, end: "now", event, token: event.token, who: who(event) };
      open.set(key, grant);
      found.push(grant);
    } else {
      let grant = open.get(key);
      if (!grant) {
        grant = { from: event.at_ms - (event.held_ms ?? 0), event, token: event.token, who: who(event) };
        found.push(grant);
      }
      grant.to = event.at_ms;
      grant.end = event.what;
      grant.reason = event.reason;
      open.delete(key);
    }
  }
  for (const grant of found) grant.to ??= asOf;
  return found;
}

const LANES = 8;
const LANE = 26;

/** When who held it: one bar for each grant, one lane for each owner. */
export function timeline(events, asOf, now) {
  const bars = grants(events, asOf);
  const from = Math.min(asOf, ...bars.map((bar) => bar.from));
  const to = Math.max(now, from + 1);
  const owners = [...new Set(bars.map((bar) => bar.who).reverse())];
  const lanes = owners.slice(0, LANES - 1);
  const lane = (owner) => (lanes.includes(owner) ? lanes.indexOf(owner) : lanes.length);
  const names = owners.length > lanes.length ? [...lanes, `${owners.length - lanes.length} others`] : lanes;
  const height = names.length * LANE + 34;
  const x = (at) => 180 + ((at - from) / (to - from)) * 800;
  const words = bars.length === 0 ? "Nothing is remembered" : `${bars.length} grants to ${owners.length} owners in ${duration(to - from)}`;
  const drawing = s("svg", { viewBox: `0 0 1000 ${height}`, role: "img", "aria-label": "Timeline: " + words });
  names.forEach((name, at) => {
    const y = at * LANE;
    drawing.append(
      s("line", { class: "axis", x1: 180, y1: y + LANE, x2: 980, y2: y + LANE }),
      s("text", { x: 0, y: y + 18 }, name.length > 25 ? name.slice(0, 24) + "…" : name, s("title", {}, name)));
  });
  for (let part = 0; part <= 4; part += 1) {
    const at = from + ((to - from) * part) / 4;
    const anchor = part === 4 ? "end" : "middle";
    const text = part === 4 ? "now" : duration(to - at) + " ago";
    drawing.append(
      s("line", { class: "axis", x1: x(at), y1: 0, x2: x(at), y2: names.length * LANE }),
      s("text", { class: "soft", x: x(at), y: height - 12, "text-anchor": anchor }, text));
  }
  for (const bar of bars) {
    const end = bar.end === "now" ? to : bar.to;
    const told = bar.end === "now" ? "held now" : happened[bar.end] ?? bar.end;
    const title = `${bar.who}, token ${bar.token}: ${told}, ${duration(end - bar.from)}${bar.reason ? ` (${bar.reason})` : ""}`;
    const shape = { class: "bar " + bar.end, x: x(bar.from), y: lane(bar.who) * LANE + 5, width: Math.max(3, x(end) - x(bar.from)), height: LANE - 10, rx: 3 };
    drawing.append(s("rect", shape, s("title", {}, title)));
  }
  return drawing;
}

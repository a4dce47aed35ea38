// Small drawings: lines over the last hour, and the timeline of a lock.

import { s } from "./dom.js";
import { count, duration, eventText, ownerName, shorten } from "./format.js";

/** Draws the figures of the last sixty minutes as a line; `label` is the text for screen readers. */
export function sparkline(figures, kind, label) {
  const highest = Math.max(1, ...figures);
  const place = (figure, at) => `${((at / (figures.length - 1)) * 300).toFixed(1)},${(46 - (figure / highest) * 42).toFixed(1)}`;
  return s("svg", { viewBox: "0 0 300 50", role: "img", "aria-label": label, preserveAspectRatio: "none", height: 50 },
    s("line", { class: "axis", x1: 0, y1: 47, x2: 300, y2: 47 }),
    s("polyline", { class: kind, points: figures.map(place).join(" ") }));
}

/** The peak as text, because the line has no scale. */
export function peakText(figures) {
  const highest = Math.max(0, ...figures);
  return highest > 0 ? `, peak ${count(highest)} a minute` : "";
}

/** The width of a drawing: the available width, so that text keeps its size. */
export const drawingWidth = (container) => Math.min(1160, Math.max(320, container.clientWidth || 1000));

/** Pairs grants with their ends, from events that come newest first. */
export function grants(events, asOf) {
  const open = new Map();
  const found = [];
  for (const event of [...events].reverse()) {
    const key = event.token + " " + event.session;
    if (event.what === "granted") {
      const grant = { from: event.at_ms, to: undefined, end: "now", event, token: event.token, owner: ownerName(event) };
      open.set(key, grant);
      found.push(grant);
    } else {
      let grant = open.get(key);
      if (!grant) {
        grant = { from: event.at_ms - (event.held_ms ?? 0), event, token: event.token, owner: ownerName(event) };
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

/** Draws the timeline of a lock: one bar for each grant, one lane for each owner. */
export function timeline(events, asOf, now, width) {
  const bars = grants(events, asOf);
  const from = Math.min(asOf, ...bars.map((bar) => bar.from));
  const to = Math.max(now, from + 1);
  const owners = [...new Set(bars.map((bar) => bar.owner).reverse())];
  const lanes = owners.slice(0, LANES - 1);
  const lane = (owner) => (lanes.includes(owner) ? lanes.indexOf(owner) : lanes.length);
  const names = owners.length > lanes.length ? [...lanes, `${owners.length - lanes.length} others`] : lanes;
  // On a phone, names have a line of their own, above their bars.
  const narrow = width < 600;
  const left = narrow ? 4 : 200;
  const right = width - 20;
  const pitch = narrow ? LANE + 18 : LANE;
  const height = names.length * pitch + 34;
  const x = (at) => left + ((at - from) / (to - from)) * (right - left);
  const label = bars.length === 0 ? "No events recorded" : `${bars.length} grants to ${owners.length} owners in ${duration(to - from)}`;
  const drawing = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Timeline: " + label });
  names.forEach((name, at) => {
    const y = (at + 1) * pitch;
    drawing.append(
      s("line", { class: "axis", x1: left, y1: y, x2: right, y2: y }),
      s("text", { x: 0, y: y - pitch + (narrow ? 14 : 18) }, shorten(name, narrow ? 48 : 28), s("title", {}, name)));
  });
  const parts = narrow ? 2 : 4;
  for (let part = 0; part <= parts; part += 1) {
    const at = from + ((to - from) * part) / parts;
    const anchor = part === parts ? "end" : part === 0 && narrow ? "start" : "middle";
    const text = part === parts ? "now" : duration(to - at) + " ago";
    drawing.append(
      s("line", { class: "axis", x1: x(at), y1: 0, x2: x(at), y2: names.length * pitch }),
      s("text", { class: "soft", x: x(at), y: height - 12, "text-anchor": anchor }, text));
  }
  for (const bar of bars) {
    const end = bar.end === "now" ? to : bar.to;
    const text = bar.end === "now" ? "held now" : eventText[bar.end] ?? bar.end;
    const title = `${bar.owner}, token ${bar.token}: ${text}, ${duration(end - bar.from)}${bar.reason ? ` (${bar.reason})` : ""}`;
    const shape = { class: "bar " + bar.end, x: x(bar.from), y: (lane(bar.owner) + 1) * pitch - LANE + 5, width: Math.max(3, x(end) - x(bar.from)), height: LANE - 10, rx: 3 };
    drawing.append(s("rect", shape, s("title", {}, title)));
  }
  return drawing;
}

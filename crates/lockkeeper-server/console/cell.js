// The health of the cell: members, leader, log, disk, the last hour, elections over time.

import { h, list, numberCell, rowHead, s, table, td, tr } from "./dom.js";
import { bytes, cellNow, count, duration, nodeLink, since } from "./format.js";
import { drawingWidth, peakText, sparkline } from "./draw.js";
import { contendedTable, heldTable } from "./top.js";

/** A member that has not answered for this long is shown as silent. */
const SILENT_MS = 1500;

const card = (name, value, note) => h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? [" ", h("small", {}, note)] : []));

function role(member, node) {
  if (member.disagreement) return h("span", { class: "bad", title: member.disagreement }, "table differs");
  if (member.node_id === node.leader) return h("span", { class: "good" }, "leader");
  if (!member.voter) return "learner";
  if (node.leads && (member.silent_ms === null || member.silent_ms > SILENT_MS)) return h("span", { class: "bad" }, "silent");
  return "follower";
}

/** Draws each election as a mark on the time of the cell. */
function electionLine(elections, width) {
  const now = cellNow();
  const from = Math.min(now - 1, ...elections.map((election) => election.at_ms));
  const x = (at) => 10 + ((at - from) / (now - from)) * (width - 30);
  const label = `${elections.length} leader changes in ${duration(now - from)}`;
  const drawing = s("svg", { viewBox: `0 0 ${width} 64`, role: "img", "aria-label": label },
    s("line", { class: "axis", x1: 10, y1: 30, x2: width - 20, y2: 30 }));
  for (const election of elections) {
    const title = `node ${election.node_id}, term ${election.term}, ${duration(now - election.at_ms)} ago`;
    drawing.append(
      s("circle", { class: "bar now", cx: x(election.at_ms), cy: 30, r: 6 }, s("title", {}, title)),
      s("text", { x: x(election.at_ms), y: 18, "text-anchor": "middle" }, String(election.node_id)));
  }
  drawing.append(
    s("text", { class: "soft", x: 10, y: 56 }, duration(now - from) + " ago"),
    s("text", { class: "soft", x: width - 20, y: 56, "text-anchor": "end" }, "now"));
  return drawing;
}

export function cell() {
  const trouble = h("div");
  const cards = h("dl", { class: "cards" });
  const members = table("Members", ["Node", "Address", "Role", "#Lag (entries)", "#Last answer"]);
  const charts = h("div", { class: "two" });
  const line = h("div");
  const elections = table("", ["Leader", "#Term", "#When"]);
  const contended = contendedTable("Most contended");
  const held = heldTable("Longest held");
  const root = h("section", {}, h("h2", {}, "Cell"), trouble, cards, members.whole, h("h3", {}, "Last hour"), charts,
    h("div", { class: "two" }, contended.whole, held.whole), h("h3", {}, "Leader history"), line, elections.whole);
  return {
    root,
    title: () => "Cell",
    query: () => ({ view: "cell" }),
    update(data, node) {
      const notice = (text) => (text ? h("p", { class: "notice bad" }, text) : "");
      const differs = data.disagreement ? `The lock table of this node differs from the majority's. The node does not serve: ${data.disagreement}.` : "";
      trouble.replaceChildren(notice(data.trouble), notice(differs));
      const disk = data.disk;
      cards.replaceChildren(
        card("Locks in use", count(data.locks), data.locks_held === 1 ? "1 grant" : `${count(data.locks_held)} grants`),
        card("Waiting", count(data.waiting)),
        card("Sessions", count(data.sessions)),
        card("Values", count(data.values)),
        card("State", bytes(data.state_bytes), `of ${bytes(data.state_bytes_max)}`),
        card("Last token", count(data.last_token)),
        card("Applied entry", count(data.applied_index), data.queued ? `${count(data.queued)} queued` : ""),
        card("Disk", disk ? bytes(disk.free_bytes) + " free" : "memory", disk ? bytes(disk.data_bytes) + " used" : "not durable"),
        card("Uptime", duration(data.uptime_ms), `node ${node.node_id}, ${data.version}, cell version ${data.cell_version}`));
      list(members.body, data.members, (member) => member.node_id, (member) => tr({ "data-node": member.node_id },
        rowHead(`node ${member.node_id}`, member.node_id === node.node_id ? " (this node)" : ""),
        td("Address", nodeLink(member.address, member.address)),
        td("Role", role(member, node)),
        numberCell("Lag (entries)", member.lag === null ? "–" : count(member.lag)),
        numberCell("Last answer", member.silent_ms === null ? "–" : member.silent_ms === 0 ? "now" : duration(member.silent_ms) + " ago")),
        (member) => JSON.stringify([member, node.leader, node.leads]));
      const hour = data.top.hour;
      const granted = hour.granted.reduce((sum, one) => sum + one, 0);
      const lost = hour.lost.reduce((sum, one) => sum + one, 0);
      charts.replaceChildren(
        h("div", {}, h("p", { class: "soft" }, `${count(granted)} grants${peakText(hour.granted)}; waited p50 ${duration(hour.waited.p50_ms)}, p99 ${duration(hour.waited.p99_ms)}`),
          sparkline(hour.granted, "spark", `${granted} grants in the last hour`)),
        h("div", {}, h("p", { class: "soft" }, `${count(lost)} lost${peakText(hour.lost)}; held p50 ${duration(hour.held.p50_ms)}, p99 ${duration(hour.held.p99_ms)}`),
          sparkline(hour.lost, "spark-lost", `${lost} grants lost in the last hour`)));
      contended.update(data.top.contended, node);
      held.update(data.top.longest_held, node);
      line.replaceChildren(electionLine(data.elections, drawingWidth(line)));
      elections.title.textContent = data.elections.length === 1 ? "1 recorded election" : `${data.elections.length} recorded elections`;
      list(elections.body, data.elections.slice(0, 10), (one) => one.term + " " + one.node_id, (one) => tr({},
        rowHead(`node ${one.node_id}`), numberCell("Term", one.term), numberCell("When", since(one.at_ms, " ago"))));
    },
  };
}

// The live connection to the node, for one view at a time. Reads server-sent events itself, because the browser's
// EventSource cannot send an access token.

import { forgetToken, tokenHeader } from "./token.js";

const AGAIN_MS = 700;

/** Watches a view until the returned function is called. Reconnects automatically. */
export function watch(parameters, onView, onLost) {
  let ended = false;
  let timer;
  const stop = new AbortController();
  const again = (refusal) => {
    if (ended) return;
    onLost(refusal);
    timer = setTimeout(open, AGAIN_MS);
  };
  const open = async () => {
    try {
      const headers = { accept: "text/event-stream", ...tokenHeader() };
      const answer = await fetch("/console/events?" + new URLSearchParams(parameters), { headers, signal: stop.signal });
      if (!answer.ok) {
        const body = await answer.json();
        if (answer.status === 401) forgetToken();
        again(answer.status === 401 || answer.status === 403 ? body.error.message : undefined);
        return;
      }
      await read(answer.body, onView, () => ended);
      again();
    } catch {
      again();
    }
  };
  open();
  return () => {
    ended = true;
    clearTimeout(timer);
    stop.abort();
  };
}

async function read(body, onView, isEnded) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done || isEnded()) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      // The last event: the node ends the stream; the next request is answered with the reason.
      if (event.startsWith("event: error")) return;
      const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length > 0 && !isEnded()) onView(JSON.parse(data.join("\n")));
    }
  }
}

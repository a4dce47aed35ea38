// The live connection to the node: one view at a time.

const AGAIN_MS = 700;

/** Watches a view until the returned function is called. Comes back by itself after the node was away. */
export function watch(parameters, onView, onLost) {
  let source;
  let timer;
  let ended = false;
  const open = () => {
    source = new EventSource("/console/events?" + new URLSearchParams(parameters));
    source.onmessage = (event) => onView(JSON.parse(event.data));
    source.onerror = () => {
      source.close();
      if (ended) return;
      onLost();
      timer = setTimeout(open, AGAIN_MS);
    };
  };
  open();
  return () => {
    ended = true;
    clearTimeout(timer);
    source.close();
  };
}

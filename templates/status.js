"use strict";
(() => {
  const REFRESH_SECONDS = 30;
  // A browser has six connections to a server, and the page needs one itself.
  const MAX_WATCHED = 4;
  const watched = new Map();
  const announce = (text) => { document.getElementById("announce").textContent = text; };
  const ended = new Set(["held", "fetched", "failed", "cancelled"]);

  const show = (id, items, isResolving) => {
    const row = document.querySelector(`[data-job="${id}"]`);
    if (!row) return;
    const count = (state) => items.filter((item) => item.state === state).length;
    const done = items.filter((item) => ended.has(item.state)).length;
    const bytes = items.reduce((sum, item) => sum + item.bytes, 0);
    const bar = row.querySelector("progress");
    bar.max = Math.max(items.length, 1);
    bar.value = done;
    const parts = [`${done} of ${items.length}${isResolving ? " or more" : ""}`, `${count("fetched")} fetched`];
    if (bytes) parts.push(`${(bytes / 1048576).toFixed(1)} MiB`);
    if (count("failed")) parts.push(`${count("failed")} failed`);
    row.querySelector("[data-counts]").textContent = parts.join(", ");
  };

  const watch = () => {
    for (const row of document.querySelectorAll("[data-job]")) {
      const id = row.dataset.job;
      if (watched.has(id) || watched.size >= MAX_WATCHED) continue;
      const source = new EventSource(`admin/v1/jobs/${id}/events`);
      watched.set(id, source);
      let job = { items: [] };
      source.addEventListener("job", (event) => {
        job = JSON.parse(event.data);
        show(id, job.items, job.resolving);
      });
      source.addEventListener("item", (event) => {
        const item = JSON.parse(event.data);
        job.items[item.number] = item;
        show(id, job.items, job.resolving);
      });
      source.addEventListener("end", async (event) => {
        source.close();
        watched.delete(id);
        await refresh();
        announce(`Job ${id}: ${JSON.parse(event.data).state}.`);
      });
    }
  };

  // What a person is using stays as it is.
  const isInUse = (part) =>
    part.contains(document.activeElement) || [...part.querySelectorAll("input")].some((input) => input.value);

  const refresh = async () => {
    let page;
    try {
      const answer = await fetch(location.pathname, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(String(answer.status));
      page = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      const shown = document.getElementById("as-of").textContent;
      announce(`larder does not answer. The figures are from ${shown}.`);
      return;
    }
    announce("");
    document.title = page.title;
    document.getElementById("as-of").replaceWith(page.getElementById("as-of"));
    const parts = [...page.querySelectorAll("[data-live]")];
    for (const old of document.querySelectorAll("[data-live]")) {
      if (!parts.some((part) => part.id === old.id) && !isInUse(old)) old.remove();
    }
    let before = document.getElementById("announce");
    for (const part of parts) {
      const old = document.getElementById(part.id);
      if (!old) {
        before.after(part);
        before = part;
      } else if (isInUse(old)) {
        before = old;
      } else {
        for (const open of old.querySelectorAll("details[open]")) {
          const same = part.querySelector(`#${open.id}`);
          if (same) same.open = true;
        }
        old.replaceWith(part);
        // The message stands below the verdict.
        before = part.id === "verdict" ? document.getElementById("announce") : part;
      }
    }
    watch();
  };

  watch();
  setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_SECONDS * 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
})();

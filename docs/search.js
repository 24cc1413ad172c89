// Sphinx puts this behind its own search code.

// The pages that answer questions come before those about the inside and the records.
const LATER = /^(api|results)\/|^(changelog|internals|notation|reliability|reproducing)$/;
Scorer.score = ([page, , , , score, , kind]) => (kind !== "object" && LATER.test(page) ? score - 20 : score);

// A result shows the first place where the words stand together, or else one of them, as whole
// words. `keywords` are stems: "learn" for learning.
Search.makeSearchSummary = (html, keywords, anchor) => {
  const text = Search.htmlToText(html, anchor.startsWith("#index-") ? "" : anchor);
  const stems = [...keywords].map((word) => `\\b${_escapeRegExp(word)}\\w*`);
  const found = [stems.join("\\W+"), ...stems].map((pattern) => text.search(new RegExp(pattern, "i")));
  const start = Math.max((found.find((place) => place >= 0) ?? 0) - 120, 0);
  const part = text.slice(start, start + 240).trim();
  const summary = document.createElement("p");
  summary.classList.add("context");
  summary.textContent = (start ? "..." : "") + part + (start + 240 < text.length ? "..." : "");
  return summary;
};

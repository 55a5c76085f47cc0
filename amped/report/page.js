"use strict";
const cards = [...document.querySelectorAll(".card")];
const find = document.getElementById("find");
const sort = document.getElementById("sort");
const labelled = cards.map((card) =>
  [...card.querySelectorAll(".bar")].map((bar) => {
    const label = bar.querySelector(".label");
    return { bar, text: (label.title || label.textContent).toLowerCase(), within: bar.closest("details") };
  }),
);

function search() {
  const query = find.value.trim().toLowerCase();
  let shown = 0;
  cards.forEach((card, at) => {
    let visible = !query;
    for (const details of card.querySelectorAll("details[data-found]")) {
      details.open = false;
      delete details.dataset.found;
    }
    for (const { bar, text, within } of labelled[at]) {
      const matches = query !== "" && text.includes(query);
      bar.classList.toggle("found", matches);
      visible ||= matches;
      if (matches && within && !within.open) {
        within.open = true;
        within.dataset.found = "";
      }
    }
    card.hidden = !visible;
    shown += visible;
  });
  document.getElementById("count").textContent = `${shown} of ${cards.length} shown`;
  document.getElementById("none").hidden = shown > 0;
}

function order() {
  const by = sort.value, sign = by === "number" ? 1 : -1;
  const key = (card) => sign * Number(card.dataset[by]);
  const sorted = [...cards].sort((a, b) => key(a) - key(b) || a.dataset.number - b.dataset.number);
  document.getElementById("cards").append(...sorted);
}

find.addEventListener("input", search);
sort.addEventListener("change", order);
document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("cards").addEventListener("click", (event) => {
  const label = event.target.closest(".label"), link = event.target.closest("a");
  if (label) {
    find.value = label.title || label.textContent;
    search();
    label.closest(".card").scrollIntoView({ block: "nearest" });
  } else if (link && document.querySelector(link.getAttribute("href")).hidden) {
    find.value = "";
    search();
  }
});
for (const [event, open] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(event, () => document.querySelectorAll("#fit details").forEach((each) => (each.open = open)));
}
search();
order();

// The page while the demo runs: it lists the problems. The demo's screenshot of the README is taken here.

import { scenario, tokens } from "./scenario.mjs";

await scenario(async ({ open }) => {
  const window = await open();
  await window.signIn(tokens.operator);
  await window.page.locator("[data-problem]").first().waitFor();
  await window.checkAccessibility("the demo's page");
  await window.screenshot("demo", true);
});

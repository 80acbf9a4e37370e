// The page while the demo runs: it names what is wrong, and here the README's picture of that is taken.

import { scenario, tokens } from "./stage.mjs";

await scenario(async ({ open }) => {
  const window = await open();
  await window.signIn(tokens.operator);
  await window.page.locator("[data-problem]").first().waitFor();
  await window.isOpenToAll("the demo's page");
  await window.shoot("demo", true);
});

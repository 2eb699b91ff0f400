# The same as runbook.toml, in HCL.
project = "shop"

queue "orders" {
  vars = ["customer", "amount"]
  retry {
    attempts = 3
    cooldown = "5s"
  }
  retry_on           = { validation_failure = "none" }
  visibility_timeout = "2m"
  hooks { on_enqueue = "hooks/orders.lua" }
}

queue "returns" {
  type = "external"
  list = ["./returns/list.sh"]
  take = ["./returns/take.sh", "{id}"]
  poll = "10s"
}

pipeline "bill" {
  step "parse" { run = "shop.steps:parse" }
  step "charge" {
    run     = "shop.steps:charge"
    timeout = "20s"
  }
  step "mail" { command = ["./mail.sh", "{customer}"] }
}

pipeline "refund" {
  step "refund" { run = "shop.steps:refund" }
}

worker "billing" {
  queue       = "orders"
  pipeline    = "bill"
  concurrency = 2
}

worker "returning" {
  queue    = "returns"
  pipeline = "refund"
}

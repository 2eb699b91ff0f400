-- hooks/orders.lua
-- Each sales channel has its turn, and whoever waits on the phone has three.
function on_enqueue(msg)
  local channel = msg.headers["channel"] or "web"
  return { fairness_key = channel, weight = channel == "phone" and 3 or 1 }
end

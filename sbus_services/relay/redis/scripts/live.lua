-- Renew the lease of this relay, ARGV[1], for ARGV[2] milliseconds, and return messages of dead relays to their queues.
-- ARGV[3…]: the queues.
redis.call('SADD', R .. 'relays', ARGV[1])
redis.call('SET', R .. 'lease:' .. ARGV[1], '1', 'PX', ARGV[2])
local recovered = 0
for _, relay in ipairs(redis.call('SMEMBERS', R .. 'relays')) do
  if redis.call('EXISTS', R .. 'lease:' .. relay) == 0 then
    for i = 3, #ARGV do
      -- From the end to the front, which keeps their order.
      while redis.call('LMOVE', R .. 'taken:' .. relay .. ':' .. ARGV[i], ARGV[i], 'RIGHT', 'LEFT') do
        recovered = recovered + 1
      end
    end
    while redis.call('LMOVE', R .. 'taken:' .. relay .. ':bus', R .. 'abandoned', 'RIGHT', 'LEFT') do
      recovered = recovered + 1
    end
    -- The bus has already notified the callers that the relay died.
    local answers = R .. 'answers:' .. relay
    local orphaned = redis.call('LLEN', answers) + redis.call('LLEN', R .. 'taken:' .. relay .. ':' .. answers)
    if orphaned > 0 then count('answers-orphaned', orphaned) end
    redis.call('DEL', answers, R .. 'taken:' .. relay .. ':' .. answers)
    redis.call('SREM', R .. 'relays', relay)
  end
end
if recovered > 0 then count('messages-recovered', recovered) end
return recovered

-- Up to ARGV[1] requests whose time is over, as they stand in the backlog.
local found = {}
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', R .. 'deadlines', '-inf', stamp(now()), 'LIMIT', 0, tonumber(ARGV[1]))) do
  local body = redis.call('HGET', P .. 'backlog', uid)
  if body then table.insert(found, body) else redis.call('ZREM', R .. 'deadlines', uid) end
end
return found

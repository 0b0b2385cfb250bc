-- Return up to ARGV[1] expired requests from the backlog.
local found = {}
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', R .. 'deadlines', '-inf', stamp(now()), 'LIMIT', 0, tonumber(ARGV[1]))) do
  local body = redis.call('HGET', P .. 'backlog', uid)
  if body then table.insert(found, body) else redis.call('ZREM', R .. 'deadlines', uid) end
end
return found

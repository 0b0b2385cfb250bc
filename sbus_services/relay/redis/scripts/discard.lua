-- Discard a malformed message: respond to it if possible, else keep it for inspection.
-- ARGV: taken, raw, limit of kept messages, limit of a queue, lifetime; then for each response: ret, body.
if not release(ARGV[1], ARGV[2]) then return 'lost' end
count('messages-malformed')
local answered = 0
for i = 6, #ARGV, 2 do
  if answer(ARGV[i], ARGV[i + 1], tonumber(ARGV[4]), ARGV[5]) == 'answered' then answered = answered + 1 end
end
if answered > 0 then return 'answered' end
if redis.call('LLEN', R .. 'refused') < tonumber(ARGV[3]) then
  redis.call('RPUSH', R .. 'refused', ARGV[2])
  return 'kept'
end
count('messages-malformed-gone')
return 'gone'

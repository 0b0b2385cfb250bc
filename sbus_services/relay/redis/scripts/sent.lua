-- Record that the remote host has stored the message. ARGV: id, twin, token, counter.
local id, twin = ARGV[1], ARGV[2]
redis.call('SADD', R .. 'peers', twin)
redis.call('HSET', R .. 'peer:' .. twin, 'reached', stamp(now()), 'failing', '0')
if redis.call('ZSCORE', R .. 'sending:' .. twin, id) ~= ARGV[3] then return 'lost' end
forget(id, twin)
count(ARGV[4])
return 'sent'

-- Drop a response that its host rejects, or that has expired. ARGV: id, twin, token, counter.
if redis.call('ZSCORE', R .. 'sending:' .. ARGV[2], ARGV[1]) ~= ARGV[3] then return 'lost' end
forget(ARGV[1], ARGV[2])
count(ARGV[4])
return 'dropped'
